"""How often to save."""

from __future__ import annotations

import pytest

from closeranks.checkpoint import interval
from closeranks.errors import UsageError


def wasted(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """Tell which share of the time is lost: to saves, and to half an interval a failure."""
    return cost_s / (interval_s + cost_s) + (interval_s / 2 + cost_s) / mtbf_s


@pytest.mark.parametrize(("cost_s", "seconds"), [(0.5, 120), (5, 376), (60, 1275)])
def test_times_are_those_of_the_paper(cost_s: float, seconds: int) -> None:
    assert round(interval(cost_s, 4 * 3600)) == seconds


@pytest.mark.parametrize("cost_s", [0.01, 1, 100])
def test_neither_more_nor_less_often_is_better(cost_s: float) -> None:
    best = interval(cost_s, 86400)
    assert wasted(best, cost_s, 86400) < min(
        wasted(factor * best, cost_s, 86400) for factor in (0.8, 1.25)
    )


def test_a_save_that_takes_longer_than_two_failures_is_made_at_each() -> None:
    assert interval(100, 40) == 40


def test_dearer_saves_are_every_so_many_cheap_ones() -> None:
    memory, disk, archive = interval(0.5, 4 * 3600, [(60, 7 * 86400), (1, 8 * 86400)])
    assert round(disk / memory) == disk / memory > 50
    assert archive == disk  # cheaper than the one below: with each of those


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (-1, 5), (float("nan"), 1), (1, float("inf"))])
def test_what_is_no_time_is_refused(values: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="give positive seconds"):
        interval(*values)
    with pytest.raises(UsageError, match="give positive seconds"):
        interval(1, 100, [values])
