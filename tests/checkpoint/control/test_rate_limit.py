"""Parity leaves the wire to a program that talks, and always gets on."""

from __future__ import annotations

import threading
import time

import pytest

from closeranks.checkpoint.control.pending import SHARE, SILENT_S, Milestone, Pace


class Program:
    """Calls that a program makes, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.every_s = 0.0
        self.flies = self.waits = False
        self.pace = Pace(self.calls, lambda: self.flies, lambda: self.waits, self.clock, self.sleep)

    def calls(self) -> int:
        return int(self.now / self.every_s) if self.every_s else 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def rested(self, took_s: float) -> float:
        before = self.now
        self.pace.rest(took_s)
        return self.now - before


def test_a_silent_program_costs_no_rest() -> None:
    program = Program()
    assert not program.pace.yields()
    assert program.rested(0.05) == 0


@pytest.mark.parametrize("calls", [True, False])
def test_one_that_talks_has_all_but_a_tenth(calls: bool) -> None:
    program = Program()
    program.every_s = 0.01 if calls else 0.0
    program.flies = not calls
    program.now += 0.02
    assert program.pace.yields()
    assert program.rested(0.05) == pytest.approx(0.05 * (1 / SHARE - 1))


def test_a_segment_that_waited_for_others_makes_no_longer_rest() -> None:
    program = Program()
    program.flies = True
    first = program.rested(0.01)
    assert program.rested(first + 0.01) == pytest.approx(first)
    assert program.rested(0.001) == pytest.approx(first / 10)


def test_rests_have_a_bound() -> None:
    program = Program()
    program.flies = True
    assert program.rested(1e6) == pytest.approx(2)


def test_it_goes_on_when_the_program_is_silent_or_waits() -> None:
    program = Program()
    program.every_s = 0.5
    program.now += 1
    assert program.pace.yields()
    program.every_s = 0.0
    assert program.pace.yields()  # which is a change, too
    assert program.rested(10.0) == pytest.approx(SILENT_S, abs=0.003)
    program.flies = program.waits = True
    assert not program.pace.yields()
    assert program.rested(10.0) == 0


def test_a_save_knows_who_waits_for_it() -> None:
    mark = Milestone(3, "committed")
    assert not mark.is_awaited()
    with pytest.raises(TimeoutError):
        mark.wait(0.01)
    assert not mark.is_awaited()
    with mark.awaited():
        assert mark.is_awaited()
    thread = threading.Thread(target=mark.wait, args=(30,))
    thread.start()
    while not mark.is_awaited():
        time.sleep(1e-3)
    mark.reach()
    thread.join()
    assert not mark.is_awaited()
