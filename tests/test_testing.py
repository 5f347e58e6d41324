"""The plugin on programs that are not ours: a folder outside the checkout, both libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {"openmpi": ("mpirun", "--bind-to", "none"), "mpich": ("mpiexec",)}
PLUGIN = ("-m", "pytest", "--with-mpi", "-p", "closeranks.testing", "--color=no", "-ra")

Launch = Callable[..., "subprocess.CompletedProcess[str]"]

#: All of it in one launch of two ranks.
MANY = """
import pytest
from mpi4py import MPI


@pytest.fixture
def odd(comm):
    assert comm is None or comm.rank == 0, "rank one has no fixture"


@pytest.fixture
def mute():
    MPI.COMM_WORLD.rank == 1 and pytest.skip("not here")


def test_good(comm):
    assert comm.allreduce(1) == comm.size


def test_bad(comm):
    assert comm.rank != 1, "rank one says no"


def test_no_fixture(odd, comm):
    comm.barrier()


@pytest.mark.mpi(min_size=3)
def test_of_three(comm):
    assert False, "not called"


@pytest.mark.mpi(min_size=2)
def test_of_two(comm):
    assert comm.size == 2


@pytest.mark.mpi_skip
def test_alone():
    assert False, "not called"


def test_skipped_by_one(mute):
    MPI.COMM_WORLD.barrier()
"""
HANGS = "def test_it(comm):\n    if comm.rank == 0:\n        comm.recv(source=0)  # never\n"


@pytest.fixture(params=LIBRARIES)
def foreign(request: pytest.FixtureRequest, launch: Launch, tmp_path: Path) -> Launch:
    """Run tests of a text on ranks of each library that is set up here."""
    bin_ = ROOT / f".venv-{request.param}" / "bin"
    if not (bin_ / "python").exists():
        pytest.skip(f"no {bin_.parent.name}: make {bin_.parent.name}/.ready")
    launcher, *flags = LIBRARIES[request.param]

    def run(body: str, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "test_one.py").write_text(body)
        command = [str(bin_ / launcher), *flags, "-n", str(ranks), str(bin_ / "python"), *PLUGIN]
        return launch([*command, *arguments, str(tmp_path)], timeout_s=60)

    return run


def test_a_foreign_folder(foreign: Launch) -> None:
    done = foreign(MANY, 2)
    assert done.returncode != 0
    assert "1 failed, 5 passed, 15 skipped, 1 error" in done.stdout
    assert re.search(r"^FAILED \S*::test_bad\[2ranks\]", done.stdout, re.MULTILINE)
    assert re.search(r"^ERROR \S*::test_no_fixture\[2ranks\]", done.stdout, re.MULTILINE)
    # In its summary pytest shortens a line, except where the variable CI is set.
    assert len(re.findall(r"^failed on ranks \[1\]", done.stdout, re.MULTILINE)) == 2
    for said in (
        "rank one says no", "rank one has no fixture",
        "Test requires 3 MPI processes, only 2", "needs 2 ranks, and this communicator has 1",
        "test does not work under mpi", "skipped on ranks [1]: not here",
    ):  # fmt: skip
        assert said in done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hang_becomes_a_traceback_of_each_rank(foreign: Launch, ranks: int) -> None:
    done = foreign(HANGS, ranks, "--mpi-timeout", "3")
    assert done.returncode != 0
    assert len(re.findall(r"Timeout \(", done.stdout)) == ranks
    assert re.search(r'test_one.py", line 3 in test_it', done.stdout)


def test_a_test_without_the_option_runs_in_one_process(tmp_path: Path) -> None:
    """In a folder named mpi, too, where pytest-mpi would skip what has no marker."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "mpi").mkdir()
    body = "import pytest\ndef test_a(): pass\n@pytest.mark.mpi\ndef test_b(): pass\n"
    (tmp_path / "mpi" / "test_two.py").write_text(body)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "closeranks.testing",
        "--color=no",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "1 passed, 1 skipped" in done.stdout


def test_an_extra_that_is_missing_is_one_line(tmp_path: Path) -> None:
    no_pytest = "import sys; sys.modules['pytest'] = None; import closeranks.testing"
    no_plugin = (
        "import importlib.util as util, sys; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'pytest_mpi' else find(name, *rest)\n"
        "import pytest; sys.exit(pytest.main(['-p', 'closeranks.testing']))"
    )
    for code, what in ((no_pytest, "pytest"), (no_plugin, "pytest-mpi")):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode != 0
        last = (done.stdout + done.stderr).strip().splitlines()[-1]
        assert re.search(rf"{what}\b.*pip install 'closeranks\[test\]'", last), last
