"""A rank dies in the middle of a collective: all survivors are told who, soon."""

from __future__ import annotations

import re
import sys

import pytest

from tests.conftest import Launch
from tests.faults.questions import Answer, Question, asks

SAID = re.compile(r"survivor (\d+): lost \((\d+),\) \((\d+),\) after ([0-9.]+) s")
SOON_S = 5.0


def told(answer: Answer) -> None:
    """Check what each of three survivors was told, and how soon."""
    said = SAID.findall(answer.text)
    assert len(said) == 3, answer.whole
    for who, ranks, seats, waited in said:
        assert (ranks, seats) == ("2", "2"), who
        assert float(waited) < SOON_S


@pytest.mark.parametrize("form", ["blocking", "request", "persistent"])
@pytest.mark.parametrize(
    ("nbytes", "algorithm"),
    [("8", "shared"), ("262144", "shared"), ("65536", "ring"), ("4096", "native")],
)
@pytest.mark.usefixtures("needs_open_mpi")
@asks(
    lambda nbytes, algorithm, form: Question(
        "lose_one.py", ("2", nbytes, algorithm, form), dies=1, stays=True
    )
)
def test_every_survivor_is_told_who_died(
    answer: Answer, nbytes: str, algorithm: str, form: str
) -> None:
    told(answer)


@pytest.mark.parametrize("algorithm", ["auto", "native"])
@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Allgather"])
@pytest.mark.usefixtures("needs_open_mpi")
@asks(
    lambda method, algorithm: Question(
        "lose_known.py", ("2", method, algorithm), dies=1, stays=True
    )
)
def test_calls_that_machine_code_hands_over_tell_it_too(
    answer: Answer, method: str, algorithm: str
) -> None:
    told(answer)


def test_what_cannot_survive_says_so(launch: Launch, mpi_library: str) -> None:
    if mpi_library == "Open MPI":
        pytest.skip("Open MPI can")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "2", "--", "true"]
    done = launch(command)
    assert done.returncode != 0
    assert "use Open MPI 5 and its mpirun" in done.stdout
