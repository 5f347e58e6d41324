"""mpi4py's own tests pass on our communicator in the place of COMM_WORLD.

Its sdist, of the version that is installed, is fetched once with pip and kept in
the environment; without a network the tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = "tests/mpi/mpi4py_suite.py"


def _fetch(folder: Path, release: str) -> str:
    """Download the sdist and unpack its tests; what pip said if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "mpi4py", "--no-build-isolation", "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"mpi4py=={release}"], capture_output=True, text=True, timeout=100
    )
    archives = list(folder.glob("mpi4py-*.tar.gz"))
    if not archives:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip found none"
    with tarfile.open(archives[0]) as archive:
        names = [m for m in archive.getmembers() if m.name.split("/")[1:2] == ["test"]]
        archive.extractall(folder, members=names, filter="data")
    return ""


@pytest.fixture(scope="module")
def suite() -> str:
    """The folder of mpi4py's tests."""
    release = version("mpi4py")
    folder = Path(sys.prefix) / "share" / "closeranks-tests"
    found = folder / f"mpi4py-{release}" / "test"
    if not (found / "test_cco_buf.py").exists():
        why = _fetch(folder, release)
        if why:
            pytest.skip(f"mpi4py's sdist is not to be had: {why}")
    return str(found)


#: Minutes of it: every type, every way to choose; `make mpi4py-suite` runs them.
EXHAUSTIVE = [
    (1, "auto", ""),
    (2, "auto", ""),
    (3, "auto", ""),
    (5, "auto", "bdG"),
    (1, "planned", "bdG"),
    (2, "planned", "bdG"),
    (3, "planned", "bdG?"),
    (5, "levels", "d"),
    *((3, str(number), "d") for number in range(4)),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "mode", "types"),
    [
        (1, "auto", "bdG"),
        (2, "planned", "d"),
        (3, "auto", "d"),
        (5, "planned", "d"),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EXHAUSTIVE),
    ],
)
def test_mpi4py_passes(mpirun: Run, suite: str, ranks: int, mode: str, types: str) -> None:
    done = mpirun(ranks, PROGRAM, suite, mode, types, timeout_s=280)
    assert done.returncode == 0, done.stdout[-4000:]
    ended = re.search(r"tests (\d+), planned calls (\d+)", done.stdout)
    assert ended, done.stdout[-4000:]
    assert int(ended[1]) > 200
    assert mode == "auto" or int(ended[2]) > 0
