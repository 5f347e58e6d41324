"""A rank that dies while rows are routed: the others go on with a route of their own."""

from __future__ import annotations

import pytest

from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


@pytest.mark.share(4)
@pytest.mark.parametrize("when", ["route", "dispatch", "combine", "chunks"])
@asks(lambda when: Question("route_dies.py", (when,), dies=1))
def test_the_others_go_on_with_a_new_route(answer: Answer, when: str) -> None:
    said = [f"seat {seat}: of 0, 2, 3" in answer.text for seat in (0, 2, 3)]
    assert said == [True] * 3, (when, answer.whole)
    assert answer.status == 0, answer.whole
