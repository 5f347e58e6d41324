"""Short calls of ranks that share one core, against mpi4py's in the same launch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from closeranks.collectives.engine import interpreter

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LINE = re.compile(r"^(\w+) +(\d+) B .*?ratio +([\d.]+)", re.MULTILINE)
#: Ours in multiples of mpi4py's: 1.3 at most where nothing else runs, 10 to 60 where a call goes
#: through Python or sleeps.
MOST = 4.0


@pytest.fixture
def one_core() -> Iterator[None]:
    """Let what is launched have one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_short_call_costs_many_times_the_librarys(
    mpirun: Run, mpi_library: str, ranks: int
) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's ranks do not hand over the core: mpi4py's calls take time slices")
    assert interpreter.is_loaded()  # what the job finds compiled
    program = "docs/internals/short_of_cores.py"
    done = mpirun(ranks, program, "--blocks", "7", "--settle", "1000", timeout_s=100)
    assert done.returncode == 0, done.stdout
    found = {(name, int(nbytes)): float(ratio) for name, nbytes, ratio in LINE.findall(done.stdout)}
    assert len(found) == 5, done.stdout
    assert all(ratio <= MOST for ratio in found.values()), done.stdout
