"""Numbers out of bounds: an error with the values and the way out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from closeranks.collectives.coded import (
    BalancedBlockDesign,
    CommunicationEfficient,
    CyclicMDS,
    CyclicRepetition,
    Expander,
    FractionalRepetition,
    Repetition,
    Tree,
)
from closeranks.errors import UsageError

WITH_S: list[Callable[..., object]] = [
    Repetition, FractionalRepetition, CyclicRepetition, CyclicMDS,
    lambda n, s: CommunicationEfficient(n, s, 1),
]  # fmt: skip


@pytest.mark.parametrize("make", WITH_S)
@pytest.mark.parametrize(
    ("n", "s", "text"),
    [
        (0, 0, "n is 0; give a whole number, 1 <= n"),
        (-3, 0, "n is -3"),
        (2.0, 0, "n is 2.0"),
        (4, 4, "s is 4; give a whole number, 0 <= s < 4"),
        (4, -1, "s is -1"),
        (4, "1", "s is '1'"),
        (4, None, "s is None"),
    ],
)
def test_n_and_s(make: Callable[..., object], n: object, s: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make(n, s)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FractionalRepetition(8, 2), r"s \+ 1 = 3 does not divide n = 8.*Repetition\(8, 2"),
        (lambda: CyclicMDS(8, 2), r"n - s = 8 - 2 is even.*s = 3, or CyclicRepetition\(8, 2\)"),
        (lambda: CyclicRepetition(8, 2, seed=-1), "seed is -1"),
        (lambda: Expander(1, 1), "n is 1; give a whole number, 2 <= n"),
        (lambda: Expander(8, 8), "d is 8; give a whole number, 1 <= d < 8"),
        (lambda: Expander(8, 0), "d is 0"),
        (lambda: Expander(7, 3), "n = 7 and d = 3 are odd"),
        (lambda: Expander(8, 3, seed=0.5), "seed is 0.5"),  # type: ignore[arg-type]
        (lambda: BalancedBlockDesign(0, 1), "n is 0"),
        (lambda: BalancedBlockDesign(7, 8), "k is 8; give a whole number, 1 <= k < 8"),
        (lambda: BalancedBlockDesign(8, 3), r"n = 8, k = 3 is known; give \(n, k\) = \(7, 3\)"),
        (lambda: Tree(0, 1, 0), "branching is 0"),
        (lambda: Tree(2, 0, 0), "depth is 0"),
        (lambda: Tree(2, 2, 2), "s is 2; give a whole number, 0 <= s < 2"),
        (lambda: CommunicationEfficient(4, 1, 4), "m is 4; give a whole number, 1 <= m < 4"),
        (lambda: CommunicationEfficient(4, 1, 0), "m is 0"),
    ],
)
def test_numbers_that_do_not_go_together(make: Callable[[], object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_a_code_shows_its_numbers() -> None:
    assert repr(Repetition(8, 1)) == "Repetition(n=8, s=1)"
    assert repr(CyclicRepetition(4, 1)) == "CyclicRepetition(n=4, s=1, seed=0)"
    assert repr(Tree(2, 2, 1)) == "Tree(branching=2, depth=2, s=1)"
