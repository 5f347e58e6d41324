"""What the cluster tests share: programs, and a SLURM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from closeranks.errors import Error
from closeranks.jobs.launch.launcher_choice import choose
from closeranks.jobs.launch.mpi_library import MpiLibrary, of_python
from tests.cluster import child
from tests.cluster import slurm as starter


@pytest.fixture(scope="session", autouse=True)
def linked() -> MpiLibrary:
    """The MPI library of the running Python; skips without one."""
    try:
        found = of_python(sys.executable)
        choose(found, srun_first=False)
    except Error as problem:
        pytest.skip(str(problem))
    return found


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs that anybody may read."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "rank.py").write_text(child.RANK)
    (folder / "sleeper.py").write_text(child.SLEEPER)
    return folder


@pytest.fixture(scope="session")
def rank(programs: Path) -> str:
    """A program whose ranks say who and where they are."""
    return str(programs / "rank.py")


@pytest.fixture(scope="session")
def sleeper(programs: Path) -> str:
    """A program that says ``ready`` and sleeps as long as it is told."""
    return str(programs / "sleeper.py")


@pytest.fixture(scope="session")
def slurm() -> Iterator[starter.Slurm]:
    """Four nodes of a real SLURM; skips where none can be started."""
    problem = starter.missing()
    if problem:
        pytest.skip(f"no SLURM can be started: {problem}")
    with starter.Slurm() as running:
        yield running
