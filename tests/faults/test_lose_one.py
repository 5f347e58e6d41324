"""A rank dies in the middle of a collective: all survivors are told who, soon."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = Path(__file__).parent / "lose_one.py"
KNOWN = PROGRAM.with_name("lose_known.py")
SAID = re.compile(r"survivor (\d+): lost \((\d+),\) \((\d+),\) after ([0-9.]+) s")
SOON_S = 5.0


def lose(
    launch: Launch, seat: int, *words: str, ranks: int = 4, program: Path = PROGRAM
) -> list[tuple[str, ...]]:
    """Run a program; gives what each survivor said."""
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(ranks), "--"]
    done = launch([*command, sys.executable, str(program), str(seat), *words])
    said = SAID.findall(done.stdout)
    assert len(said) == ranks - 1, done.stdout
    return said


@pytest.mark.parametrize("form", ["blocking", "request", "persistent"])
@pytest.mark.parametrize(
    ("nbytes", "algorithm"),
    [("8", "shared"), ("262144", "shared"), ("65536", "ring"), ("4096", "native")],
)
@pytest.mark.usefixtures("needs_open_mpi")
def test_every_survivor_is_told_who_died(
    launch: Launch, nbytes: str, algorithm: str, form: str
) -> None:
    for who, ranks, seats, waited in lose(launch, 2, nbytes, algorithm, form):
        assert (ranks, seats) == ("2", "2"), who
        assert float(waited) < SOON_S


@pytest.mark.parametrize("algorithm", ["auto", "native"])
@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Allgather"])
@pytest.mark.usefixtures("needs_open_mpi")
def test_calls_that_machine_code_hands_over_tell_it_too(
    launch: Launch, method: str, algorithm: str
) -> None:
    for who, ranks, seats, waited in lose(launch, 2, method, algorithm, program=KNOWN):
        assert (ranks, seats) == ("2", "2"), who
        assert float(waited) < SOON_S


def test_what_cannot_survive_says_so(launch: Launch, mpi_library: str) -> None:
    if mpi_library == "Open MPI":
        pytest.skip("Open MPI can")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "2", "--", "true"]
    done = launch(command)
    assert done.returncode != 0
    assert "use Open MPI 5 and its mpirun" in done.stdout
