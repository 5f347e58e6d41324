"""A rank that dies amid `Allreduce_sparse`, inside of attempts."""

from __future__ import annotations

import pytest

from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("algorithm", "kernel"),
    [("split", "pair_layout"), ("split", "pair_merge"), ("split", "pair_join"),
     ("doubling", "pair_split")],
)  # fmt: skip
@asks(lambda algorithm, kernel: Question("sparse_dies.py", (algorithm, kernel), dies=1))
def test_the_others_go_on(answer: Answer, algorithm: str, kernel: str) -> None:
    assert all(f"seat {seat}: ok" in answer.text for seat in (0, 2, 3)), answer.whole
    assert answer.status == 0, answer.whole
