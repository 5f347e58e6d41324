"""What becomes of a family of communicators when one of its ranks dies."""

from __future__ import annotations

import pytest

from tests.faults.kin import KINDS
from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

GIVES_UP = {"first_calls_are_timed", "start_is_unfinished", "forsaken"}


def kin(case: str) -> Question:
    """Ask what comes of a case in which one dies."""
    dies = 0 if case == "start_is_unfinished" else 1
    return Question("kin.py", (case,), dies=dies, stays=case in GIVES_UP)


@pytest.mark.parametrize(
    "case",
    ["freed_parent", "freed_parent_in_use", "group_of_some", "given_up", "left_by_a_death",
         "closed_in_vain", "first_calls_are_timed", "wire_is_kept", "held_methods",
         "start_is_unfinished", "counts_are_asked", "forsaken"],
)  # fmt: skip
@asks(kin)
def test_a_family_goes_on(answer: Answer, case: str) -> None:
    left = 4 if case == "start_is_unfinished" else 3
    assert [f"seat {seat}: ok" in answer.text for seat in range(left)] == [True] * left, (
        answer.whole
    )
    assert answer.status == (1 if case in GIVES_UP else 0), answer.whole


@asks(Question("kin.py", ("forsaken_twice",), dies=2))
def test_what_was_forsaken_stays_so_where_a_second_rank_dies(answer: Answer) -> None:
    assert [f"seat {seat}: ok" in answer.text for seat in (0, 2)] == [True, True], answer.whole
    assert answer.status == 0, answer.whole


@pytest.mark.parametrize("kind", KINDS)
@asks(lambda kind: Question("kin.py", (kind,), dies=1, stays=True))
def test_what_was_started_before_a_recovery_is_void(answer: Answer, kind: str) -> None:
    assert all(f"seat {seat}: ok" in answer.text for seat in range(3)), answer.whole
    assert answer.status == 1, "given up"


@pytest.mark.parametrize(("case", "status"), [("made_anew", 0), ("made_once", 1)])
@asks(
    lambda case, status: Question("kin.py", (case,), ranks=5, dies=1, spares=1, stays=status == 1)
)
def test_newcomers_and_members_make_what_is_persistent_alike(
    answer: Answer, case: str, status: int
) -> None:
    assert all(f"seat {seat}: ok" in answer.text for seat in range(3)), answer.whole
    assert answer.status == status, answer.whole
