"""Run tests/mpi on four real ranks, and see that the harness can fail."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.faults.cells import SEED
from tests.shares import shares

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PYTEST = ("-m", "pytest", "--capture=sys", "--color=no", "-p", "no:cacheprovider")
HARNESS = (Path(__file__).parent / "mpi" / "conftest.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(920)
def test_real_ranks(
    mpirun: Run,
    mpi_library: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """On four ranks, and by turns on one, two or three; on all of them where FAULTS_SEED=all."""
    monkeypatch.setenv("MPI_SEED", SEED)
    done = mpirun(4, *PYTEST, "tests/mpi", "--durations=0", timeout_s=900)
    assert done.returncode == 0, done.stdout
    ended = re.search(r"=+ (.*\b[1-9]\d* passed.*?) =+$", done.stdout, re.MULTILINE)
    assert ended, done.stdout
    record_property(
        "layer", f"real ranks, {mpi_library}, MPI_SEED={SEED} mpirun -n 4 tests/mpi: {ended[1]}"
    )
    spent = re.findall(r"^(\d+\.\d+)s (?:setup|call|teardown) +(\S+)", done.stdout, re.MULTILINE)
    said = shares((name, float(seconds)) for seconds, name in spent)
    record_property("layer", f"real ranks, by file: {said}")


def _folder(tmp_path: Path, body: str) -> str:
    """Make a folder with the harness and one test."""
    (tmp_path / "conftest.py").write_text(HARNESS.replace("LIMIT_S = 60.0", "LIMIT_S = 4.0"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    mpi: real ranks\n")
    (tmp_path / "test_one.py").write_text(body)
    return str(tmp_path)


def test_a_failure_on_one_rank_fails_the_launch(mpirun: Run, tmp_path: Path) -> None:
    body = "def test_it(comm):\n    assert comm.rank != 1, 'rank one says no'\n"
    done = mpirun(2, *PYTEST, _folder(tmp_path, body), timeout_s=60)
    assert done.returncode != 0
    assert "failed on ranks [1]" in done.stdout
    assert "rank one says no" in done.stdout
    assert "1 failed, 1 passed, 2 skipped" in done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hang_becomes_a_traceback(mpirun: Run, tmp_path: Path, ranks: int) -> None:
    body = "def test_it(comm):\n    if comm.rank == 0:\n        comm.recv(source=0)  # never\n"
    done = mpirun(ranks, *PYTEST, _folder(tmp_path, body), timeout_s=60)
    assert done.returncode != 0
    assert "Timeout" in done.stdout
    if ranks == 1 or (Path(sys.prefix) / "bin" / "prterun").exists():  # Hydra mixes lines
        assert re.search(r'test_one.py", line 3 in test_it', done.stdout)


def test_a_fixture_that_fails_on_one_rank_fails_everywhere(mpirun: Run, tmp_path: Path) -> None:
    body = (
        "import pytest\n\n\n@pytest.fixture\ndef odd(comm):\n    assert comm.rank == 0\n\n\n"
        "def test_it(odd, comm):\n    comm.barrier()\n"
    )
    done = mpirun(2, *PYTEST, _folder(tmp_path, body), "-k", "2ranks", timeout_s=60)
    assert done.returncode != 0
    assert "failed on ranks [1]" in done.stdout


def test_a_rank_that_dies_ends_the_launch(mpirun: Run, tmp_path: Path) -> None:
    body = "import os\n\n\ndef test_it(comm):\n    comm.rank == 1 and os._exit(3)\n"
    done = mpirun(2, *PYTEST, _folder(tmp_path, body), timeout_s=60)
    assert done.returncode != 0


def test_a_launch_past_its_time_is_ended_whole(mpirun: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    sleeper = f"import os, time; open({str(pids)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(60)"
    with pytest.raises(pytest.fail.Exception, match="no end after 5 s"):
        mpirun(2, "-c", sleeper, timeout_s=5)
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) == 2
    assert [pid for pid in started if psutil.pid_exists(pid)] == []
