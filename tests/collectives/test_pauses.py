"""How long the progress thread sleeps between two looks."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba")

from closeranks.collectives.engine import compiled_loop
from closeranks.collectives.engine import loop_layout as at

_ENTERED_S = 1000.0


class _Clock:
    """C functions for the loop: a clock that stands still, a sleep that is noted."""

    def __init__(self, waited_us: int) -> None:
        self.slept: list[int] = []
        self.yielded = 0
        self.now_s = _ENTERED_S + waited_us * 1e-6
        self._functions = (
            ctypes.CFUNCTYPE(ctypes.c_double)(lambda: self.now_s),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32)(self._sleep),
            ctypes.CFUNCTYPE(ctypes.c_int)(self._relax),
        )
        self._wanted = np.zeros(1, np.int64)

    def _sleep(self, us: int) -> int:
        self.slept.append(us)
        return 0

    def _relax(self) -> int:
        self.yielded += 1
        return 0

    def state(self, pause_us: int, patience_ns: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        made = np.zeros(at.STATES, np.int64)
        places = (at.CLOCK, at.SLEEP, at.YIELD)
        for place, function in zip(places, self._functions, strict=True):
            made[place] = ctypes.cast(function, ctypes.c_void_p).value or 0
        made[at.PATIENCE_NS], made[at.SPIN_NS] = patience_ns, 30_000
        made[at.PAUSE_US], made[at.N_REQUESTS] = pause_us, 1
        made[at.WANTED] = self._wanted.ctypes.data
        made[at.SINCE] = int(_ENTERED_S * 1e6)
        return made


@pytest.mark.parametrize(
    ("waited_us", "slept"),
    [(20, []), (100, [25]), (400, [50]), (800, [50]), (1600, [100]), (4000, [250]), (9000, [250])],
)
def test_the_longer_the_wait_the_longer_the_sleep(waited_us: int, slept: list[int]) -> None:
    clock = _Clock(waited_us)
    assert compiled_loop.stay(clock.state(50, 20_000_000), _ENTERED_S)
    assert [*map(round, clock.slept)] == pytest.approx(slept, abs=1)


def test_it_comes_back_when_its_patience_is_over_or_it_is_wanted() -> None:
    clock = _Clock(30_000)
    assert not compiled_loop.stay(clock.state(50, 20_000_000), _ENTERED_S)
    clock = _Clock(100)
    state = clock.state(50, 20_000_000)
    clock._wanted[0] = 1
    assert not compiled_loop.stay(state, _ENTERED_S)
    assert clock.slept == []


def test_who_waits_itself_makes_way_and_does_not_sleep() -> None:
    clock = _Clock(100)
    assert compiled_loop.stay(clock.state(0, 20_000_000), _ENTERED_S)
    assert (clock.yielded, clock.slept) == (1, [])
