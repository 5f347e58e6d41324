"""Which ranks are slow, and the bursty model that fits."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.coded import Bursty, GilbertElliott
from closeranks.collectives.coded.stragglers.slow_ranks import (
    burst_lengths,
    fit_bursty,
    slow_ranks,
)


def test_a_rank_that_is_slow_for_good() -> None:
    factors = 1 + 0.03 * np.random.default_rng(1).random((100, 8))
    factors[:, 3] *= 2
    factors[60:, 5] *= 2  # not in the first half
    factors[::10, 6] *= 4
    found = slow_ranks(factors)
    assert found.chronic == (3,)
    assert found.usual[3] == pytest.approx(2, rel=0.05)
    assert found.bursty[:1] == (6,) or found.bursty[0] == 5
    assert found.late[:, 6].sum() == 10
    assert not found.late[:, 3].any()
    assert not found.late[:, 0].any()


def test_bursts_are_counted() -> None:
    late = np.zeros((9, 3), bool)
    late[0, 0] = late[2:5, 0] = late[8, 0] = late[4:6, 2] = True
    assert burst_lengths(late) == {1: 2, 2: 1, 3: 1}
    assert burst_lengths(np.ones((4, 2), bool)) == {4: 2}
    assert burst_lengths(np.zeros((4, 2), bool)) == {}


@pytest.mark.parametrize(("B", "W", "lam"), [(1, 3, 2), (2, 4, 3), (3, 5, 4)])
def test_a_drawn_pattern_is_admitted_by_what_is_fitted(B: int, W: int, lam: int) -> None:
    late = Bursty(B, W, lam, seed=3).factors(300, 8) > 1
    found = fit_bursty(late, coverage=1)
    assert found.admits(late)
    assert (found.B, found.W, found.lam) == (B, W, lam)


def test_most_of_a_random_pattern_is_covered() -> None:
    late = GilbertElliott(0.05, 0.15, 3, 5).factors(500, 16) > 1
    found = fit_bursty(late)
    assert found.B == 2
    assert found.W > found.B
    windows = [late[r : r + found.W].any(axis=0).sum() for r in range(500 - found.W + 1)]
    assert np.mean(np.array(windows) <= found.lam) >= 0.95
    assert np.mean(np.array(windows) <= found.lam - 1) < 0.95


def test_nobody_late_needs_nothing() -> None:
    found = fit_bursty(np.zeros((10, 4), bool))
    assert (found.B, found.W, found.lam) == (1, 2, 0)
