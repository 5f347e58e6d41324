"""States that are on their way when ranks die, are late, or fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.questions import Answer, Question, asks

HERE = Path(__file__).parent
RUN = [sys.executable, "-m", "closeranks", "run"]
#: Who dies, and how long after the state has begun to travel.
DEATHS = [(3, 0.005), (0, 0.01), (2, 0.02), (3, 0.03), (1, 0.04), (3, 0.05), (0, 0.06), (2, 0.08),
          (3, 0.1)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("needs_open_mpi")
@pytest.mark.parametrize(("seat", "after_s"), DEATHS, ids=lambda given: f"{given}")
@asks(
    lambda seat, after_s: Question(
        "state_dies.py", (str(seat), str(after_s)), ranks=6, dies=2, spares=2
    )
)
def test_a_second_may_die_while_a_newcomer_gets_the_state(
    answer: Answer, seat: int, after_s: float
) -> None:
    assert sorted(re.findall(r"seat \d of .*", answer.text)) == [
        f"seat {other} of 4, epoch 2: [1.]" for other in range(4)
    ], answer.whole
    assert answer.status == 0


def broken(launch: Launch, way: str, *options: str) -> dict[str, str]:
    """Run the program; gives what each rank said."""
    start = [*RUN, *options, "-n", "3", "--", sys.executable]
    done = launch([*start, str(HERE / "broken_state.py"), way])
    said = dict(re.findall(r"rank (\d): (.*)", done.stdout))
    assert len(said) == 3, done.stdout
    return said


@pytest.mark.usefixtures("mpi_library")
def test_a_state_that_takes_too_long_is_late(launch: Launch) -> None:
    said = broken(launch, "late")
    assert said["0"].startswith("PeerLate synchronize: not ended after")
    assert "waiting for rank 2" in said["0"]
    assert said["2"].startswith("PeerLate synchronize: not ended after")


@pytest.mark.usefixtures("mpi_library")
def test_who_fails_to_give_a_state_keeps_nobody_waiting(launch: Launch) -> None:
    said = broken(launch, "error")
    assert said["0"] == "MemoryError ndarray"
    assert said["2"].startswith("Revoked synchronize")
