"""The wait spins, yields, sleeps, and stops when told to."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator

import pytest

from closeranks.collectives.faults.spares import longest_nap_s
from closeranks.comms import wait as waiting
from closeranks.comms.wait import Deadline, settle, wait
from closeranks.errors import Revoked


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    yield
    settle(1, 1)


class Count:
    """Ready at the n-th look."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_ready_at_once() -> None:
    assert wait(lambda: True)


def test_progress_comes_before_the_look() -> None:
    seen: list[str] = []

    def progress() -> bool:
        seen.append("progress")
        return True

    def ready() -> bool:
        seen.append("ready")
        return len(seen) >= 4

    assert wait(ready, progress=progress)
    assert seen == ["progress", "ready"] * 2


def test_a_deadline_ends_it() -> None:
    deadline = Deadline(0.03)
    assert not wait(lambda: False, deadline=deadline)
    assert 0.03 <= deadline.waited_s < 1.0
    assert deadline.expired


def test_a_deadline_of_nothing_still_looks_once() -> None:
    assert wait(lambda: True, deadline=Deadline(0.0))
    assert not wait(lambda: False, deadline=Deadline(0.0))


def test_abort_raises_through_it() -> None:
    def abort() -> None:
        raise Revoked("wait")

    with pytest.raises(Revoked):
        wait(lambda: False, abort=abort)
    assert wait(lambda: True, abort=abort), "what is ready is ready"


def test_the_stages_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    pauses: list[float] = []

    def slept(pause_s: float) -> None:
        stages.append("sleep")
        pauses.append(pause_s)

    monkeypatch.setattr(os, "sched_yield", lambda: stages.append("yield"))
    monkeypatch.setattr(time, "sleep", slept)
    settle(1, 1)
    assert wait(Count(waiting.SPINS + waiting.YIELDS + 7))
    assert stages == ["yield"] * waiting.YIELDS + ["sleep"] * 6
    assert pauses == sorted(pauses)
    assert pauses[0] == waiting.SHORTEST_S
    assert max(pauses) <= waiting.LONGEST_S


def test_who_waits_long_sleeps_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    settle(8, 2)
    assert wait(lambda: sum(pauses) > 1.0)
    assert len(pauses) < 600, "Linux starves others where ranks fall asleep all the time"
    waited = list(itertools.accumulate(pauses))
    late = [after / before - 1 for before, after in itertools.pairwise(waited) if before > 5e-3]
    assert max(late) < 0.1, "a wait may end in a sleep"


def test_who_is_woken_sleeps_short_again() -> None:
    naps: list[float] = []

    def doze(seconds: float) -> bool:
        naps.append(seconds)
        return len(naps) == 700

    assert wait(lambda: len(naps) == 1000, longest_s=0.02, doze=doze)
    assert naps[690] == 0.02
    assert max(naps[:700]) == 0.02
    assert naps[700] == waiting.SHORTEST_S
    assert naps[701] > naps[700]


@pytest.mark.parametrize("spares", [1, 2, 30, 50])
def test_spares_together_fall_asleep_seldom(spares: int) -> None:
    assert waiting.LONGEST_S <= longest_nap_s(spares) <= 0.05
    assert spares / longest_nap_s(spares) <= 1000, "Linux starves others"


def test_nobody_spins_where_ranks_outnumber_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not settle(2, 2)
    assert waiting.crowding() == 1
    assert settle(3, 2)
    assert waiting.crowding() == 1.5
    yields: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    assert wait(Count(4))
    assert len(yields) == 3


def test_a_polite_wait_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    yields: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    assert wait(Count(4), polite=True)
    assert len(yields) == 3


def test_movement_makes_it_spin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settle(1, 1)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    rounds = 3 * (waiting.SPINS + waiting.YIELDS)
    looks = iter(range(10**9))
    assert wait(Count(rounds), progress=lambda: next(looks) % 1000 == 0)
    assert not slept


def test_a_sleeping_wait_leaves_the_core_to_others() -> None:
    settle(10**6, 1)
    done = threading.Event()
    timer = threading.Timer(0.3, done.set)
    timer.start()
    before = time.process_time()
    assert wait(done.is_set)
    assert time.process_time() - before < 0.2
    timer.join()
