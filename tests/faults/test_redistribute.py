"""A rank that dies amid `redistribute`, inside of attempts."""

from __future__ import annotations

import pytest

from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


@pytest.mark.parametrize("step", ["agreed", "pack", "unpack", "reduce"])
@pytest.mark.parametrize("way", ["window", "messages"])
@asks(lambda way, step: Question("redistributes.py", (way, step), dies=1))
def test_the_others_go_on_with_a_new_mesh(answer: Answer, way: str, step: str) -> None:
    assert all(f"seat {seat}: ok" in answer.text for seat in (0, 2, 3)), answer.whole
    assert answer.status == 0, answer.whole
