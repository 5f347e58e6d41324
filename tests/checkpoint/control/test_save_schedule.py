"""When a save is due: the same on all ranks, seldom asked, neither early nor late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint import interval
from closeranks.checkpoint.control.save_schedule import Cadence
from closeranks.errors import UsageError


class Ranks:
    """Ranks whose clocks start anywhere; all call ``save`` together."""

    def __init__(
        self, size: int, every: float | Literal["auto"], mtbf_s: float | None = None
    ) -> None:
        self.time_s, self.words, self.costs = 0.0, 0, [0.0] * size
        self.saves: list[float] = []
        self.all = [Cadence(every, mtbf_s, self._clock(1e4 * rank)) for rank in range(size)]

    def _clock(self, start_s: float) -> Callable[[], float]:
        return lambda: start_s + self.time_s

    def call(self, late: Sequence[float] = (), failed: Sequence[int] = (), **how: bool) -> bool:
        """Call; give whether it is a save, and let that take its time."""
        said: list[list[int]] = []
        late = [*late, *[0.0] * (len(self.all) - len(late))]

        def note(words: Sequence[int]) -> Any:
            said.append(list(words))
            return np.array([1, -1 << 60, 1])  # not due, whatever the words are

        # each rank's words first, which ask a copy; then the answer of all
        start = self.time_s
        for rank, one in enumerate(self.all):
            self.time_s = start + late[rank]
            _copy(one).is_due(note, has_failed=rank in failed, **how)
        least: Any = np.array(said).min(axis=0) if said else None
        self.words += bool(said)
        found = []
        for rank, one in enumerate(self.all):
            self.time_s = start + late[rank]
            found.append(one.is_due(lambda _: least, has_failed=rank in failed, **how))
        assert len(said) in (0, len(self.all)), "some wait for words that others never say"
        assert len(set(found)) == 1
        self.time_s = start + max(late)
        if found[0]:
            self.saves.append(self.time_s)
            begun = self.time_s
            for one, cost in zip(self.all, self.costs, strict=True):
                self.time_s = begun + cost
                one.note()
            self.time_s = begun + max(self.costs)
        return found[0]


def _copy(one: Cadence) -> Cadence:
    """Give a cadence in the same state."""
    made = Cadence.__new__(Cadence)
    made.__dict__.update(one.__dict__)
    return made


def test_without_an_interval_every_call_saves() -> None:
    def nobody(_: Sequence[int]) -> Any:
        raise AssertionError("asked")

    one = Cadence(None, None)
    for _ in range(3):
        assert one.is_due(nobody)
        one.note()


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 100, 1000, 30_000])
def test_equal_steps_save_at_the_first_call_after_the_interval(steps: int) -> None:
    ranks = Ranks(3, 60.0)
    step_s = 60.0 / steps
    while len(ranks.saves) < 4:
        ranks.call()
        ranks.time_s += step_s
    for one, other in pairwise(ranks.saves):
        assert 60 - 1e-6 <= other - one <= 60 + step_s + 1e-6
    assert ranks.words <= 1 + 3 * (2 * np.log2(steps) + 3)


@given(
    st.lists(st.floats(1e-4, 50.0), min_size=3, max_size=80),
    st.lists(st.lists(st.floats(0, 1.0), min_size=3, max_size=3), min_size=1, max_size=9),
    st.floats(0.01, 100.0),
)
def test_any_steps_and_any_delays_give_one_decision(
    steps: list[float], delays: list[list[float]], every: float
) -> None:
    ranks = Ranks(3, every)
    for at in range(150):
        ranks.call(delays[at % len(delays)])
        ranks.time_s += steps[at % len(steps)]
    longest = max(steps) + 2 * max(map(max, delays))
    for one, other in pairwise(ranks.saves):
        assert other - one >= every - 1e-6
        # the pace so far is at least the shortest step, and half of what is left is silent
        assert other - one <= every + longest + longest * max(1.0, every / min(steps))


@pytest.mark.parametrize("slower", [1, 2, 4])
def test_late_by_as_much_as_later_steps_take_longer(slower: int) -> None:
    ranks = Ranks(2, 100.0)
    ranks.call()
    calls = 0
    while len(ranks.saves) < 2:
        calls += 1
        ranks.time_s += 0.1 if calls < 300 else 0.1 * slower
        ranks.call()
    assert 100 <= ranks.saves[1] <= 100 + 35 * (slower - 1) + slower


def test_a_quick_call_does_not_silence_a_thousand() -> None:
    ranks = Ranks(2, 60.0)
    ranks.call()
    for _ in range(8):  # which say that a million calls are left
        ranks.time_s += 1e-6
        assert not ranks.call()
    for _ in range(40):
        ranks.time_s += 10.0
        if ranks.call():
            break
    assert ranks.time_s <= 200


def test_the_dearest_rank_decides_what_is_best() -> None:
    ranks = Ranks(3, "auto", 7200.0)
    ranks.costs = [0.1, 2.0, 0.5]
    while len(ranks.saves) < 8:
        ranks.call()
        ranks.time_s += 0.25
    best = interval(2.0, 7200.0)
    for one, other in pairwise(ranks.saves):
        assert best <= other - one - 2.0 <= best + 2.25


def test_a_first_save_that_is_dear_is_forgotten() -> None:
    ranks = Ranks(2, "auto", 86400.0)
    ranks.costs = [20.0, 20.0]
    ranks.call()
    ranks.costs = [0.2, 0.2]
    while len(ranks.saves) < 5:
        ranks.time_s += 1.0
        ranks.call()
    assert ranks.saves[4] - ranks.saves[3] <= interval(0.2, 86400.0) + 3


def test_a_save_that_costs_nothing_has_an_interval() -> None:
    ranks = Ranks(2, "auto", 86400.0)
    for _ in range(2000):
        ranks.call()
        ranks.time_s += 0.01
    assert 20 < len(ranks.saves) < 60


def test_now_saves_and_counts_from_there() -> None:
    ranks = Ranks(3, 10.0)
    for _ in range(6):
        ranks.call()
        ranks.time_s += 1.0
    assert ranks.call(now=True)
    while len(ranks.saves) < 3:
        ranks.time_s += 1.0
        ranks.call()
    assert ranks.saves == [0.0, 6.0, 16.0]


def test_what_one_rank_knows_has_failed_is_done_again() -> None:
    ranks = Ranks(3, 1000.0)
    ranks.call()
    ranks.time_s += 1.0
    assert ranks.call(failed=[2])
    ranks.time_s += 1.0
    assert not ranks.call()


def test_newcomers_and_members_begin_together() -> None:
    ranks = Ranks(3, 100.0)
    for _ in range(50):
        ranks.call()
        ranks.time_s += 1.0
    for one in ranks.all[:2]:
        one.restart()
    ranks.all[2] = Cadence(100.0, None, ranks._clock(7.0))
    assert ranks.call()


def test_a_save_that_failed_on_some_ranks_is_due_on_all() -> None:
    ranks = Ranks(3, 100.0)
    assert ranks.call()
    ranks.time_s += 1.0
    ranks.all[1].restart()  # as one that was never told of its end
    ranks.all[1]._calls = ranks.all[0]._calls
    assert ranks.call()


@pytest.mark.parametrize(("every", "mtbf_s"), [
    (0, None), (-1.0, None), (float("nan"), None), (float("inf"), None), (1e12, None),
    ("often", None), ("auto", None), ("auto", 0.0), ("auto", float("nan")), (5.0, 60.0),
    (None, 60.0),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(every: Any, mtbf_s: float | None) -> None:
    with pytest.raises(UsageError, match="Checkpointer: "):
        Cadence(every, mtbf_s)
