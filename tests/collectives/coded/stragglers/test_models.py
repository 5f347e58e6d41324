"""Models of stragglers: which patterns they admit, and which they draw."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.coded import Arbitrary, Bursty, GilbertElliott
from closeranks.errors import UsageError


def is_bursty(late: NDArray[np.bool_], B: int, W: int, lam: int) -> bool:
    """The definition, window by window."""
    rounds, n = late.shape
    for first in range(max(1, rounds - W + 1)):
        window = late[first : first + W]
        if window.any(axis=0).sum() > lam:
            return False
        for worker in range(n):
            when = np.flatnonzero(window[:, worker])
            if len(when) and when[-1] - when[0] >= B:
                return False
    return True


def is_arbitrary(late: NDArray[np.bool_], N: int, W: int, lam: int) -> bool:
    """The definition, window by window."""
    for first in range(max(1, len(late) - W + 1)):
        counts = late[first : first + W].sum(axis=0)
        if (counts > N).any() or (counts > 0).sum() > lam:
            return False
    return True


@pytest.mark.parametrize(("B", "W", "lam"), [(1, 2, 1), (1, 3, 2), (2, 3, 1), (2, 2, 1), (1, 1, 1)])
def test_admits_all_patterns_of_the_definition(B: int, W: int, lam: int) -> None:
    admitted = 0
    for bits in itertools.product([False, True], repeat=8):
        late = np.array(bits).reshape(4, 2)
        wanted = is_bursty(late, B, W, lam)
        assert Bursty(B, W, lam).admits(late) == wanted
        assert Arbitrary(B, W, lam).admits(late) == is_arbitrary(late, B, W, lam)
        admitted += wanted
        if wanted and B < W:  # the lemma of the paper
            assert Arbitrary(B, W - 1 + B, 2).admits(late)
    assert 1 < admitted < 256 or lam == 2


def test_short_patterns_count_with_the_rounds_that_there_are() -> None:
    assert Bursty(1, 5, 1).admits(np.array([[True, False], [False, False]]))
    assert not Bursty(1, 5, 1).admits(np.array([[True, False], [False, True]]))


@pytest.mark.parametrize(
    "model", [Bursty(1, 3, 2), Bursty(2, 4, 3), Bursty(3, 3, 2), Arbitrary(2, 5, 3)]
)
def test_factors_are_of_an_admissible_pattern(model: Any) -> None:
    for seed in range(5):
        model.seed = seed
        found = model.factors(60, 7)
        late = found > 1
        assert model.admits(late)
        assert late.any(axis=0).sum() > model.lam
        assert set(np.unique(found)) == {1.0, 3.0}
        assert (found == model.factors(60, 7)).all()


def test_windows_are_used_to_the_full() -> None:
    late = Bursty(2, 4, 3, seed=4).factors(200, 9) > 1
    windows = [late[r : r + 4].any(axis=0).sum() for r in range(197)]
    assert max(windows) == 3
    assert (late[1:] & late[:-1]).any()


def test_gilbert_elliott_has_its_probabilities() -> None:
    late = GilbertElliott(0.05, 0.4, 3, 11).factors(4000, 50) > 1
    after, before = late[1:], late[:-1]
    assert after[before].mean() == pytest.approx(0.4, abs=0.02)
    assert after[~before].mean() == pytest.approx(0.05, abs=0.005)


def test_gilbert_elliott_begins_stationary() -> None:
    first = np.array([GilbertElliott(0.1, 0.3, 8, seed).factors(1, 64)[0] for seed in range(200)])
    assert (first > 1).mean() == pytest.approx(0.1 / 0.8, abs=0.01)


def test_jitter_multiplies_all_times() -> None:
    found = GilbertElliott(0.1, 0.3, 8, 2, jitter=0.5).factors(500, 20)
    plain = GilbertElliott(0.1, 0.3, 8, 2).factors(500, 20)
    ratio = found / plain
    assert 1 <= ratio.min() < 1.01
    assert 1.49 < ratio.max() <= 1.5
    assert ratio.mean() == pytest.approx(1.25, abs=0.01)


def test_the_first_rounds_of_more_are_the_same() -> None:
    model = GilbertElliott(0.1, 0.3, 8, 2, jitter=0.5)
    assert (model.factors(50, 4)[:20] == model.factors(20, 4)).all()
    assert (GilbertElliott(0.1, 0.3, 8, 3).factors(50, 4) != model.factors(50, 4)).any()


def test_nobody_is_slow_without_a_way_in() -> None:
    assert (GilbertElliott(0, 1, 8, 0).factors(10, 3) == 1).all()
    assert (GilbertElliott(1, 1, 8, 0).factors(10, 3) == 8).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Bursty(0, 2, 1), "B is 0"),
        (lambda: Bursty(3, 2, 1), "B is 3"),
        (lambda: Bursty(1, 2, -1), "lam is -1"),
        (lambda: Bursty(1, 2, 1, slowdown=0.5), "slowdown is 0.5"),
        (lambda: Bursty(1, 2, 4).factors(9, 3), "lam is 4"),
        (lambda: Bursty(1, 2, 1).factors(0, 3), "rounds is 0"),
        (lambda: Bursty(1, 2, 1).admits([[1, 0]]), "dtype int64"),
        (lambda: Bursty(1, 2, 1).admits(np.zeros((0, 3), bool)), "shape (0, 3)"),
        (lambda: Arbitrary(3, 2, 1), "N is 3"),
        (lambda: Arbitrary(1, 0, 1), "W is 0"),
        (lambda: Arbitrary(1, 2, 4).factors(9, 3), "lam is 4"),
        (lambda: GilbertElliott(1.5, 0, 2, 0), "enter is 1.5"),
        (lambda: GilbertElliott(0.5, float("nan"), 2, 0), "stay is nan"),
        (lambda: GilbertElliott(0.5, 0, 0.9, 0), "slowdown is 0.9"),
        (lambda: GilbertElliott(0.5, 0, 2, -1), "seed is -1"),
        (lambda: GilbertElliott(0.5, 0, 2, 0, jitter=-1), "jitter is -1"),
    ],
)
def test_bad_numbers_are_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError) as found:
        make()
    assert said in str(found.value)
