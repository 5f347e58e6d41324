"""What the bench of faults makes of a fault, in whatever moment a rank meets it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches import faults
from tests.jobs.bench.keys import BASE


class _Attempt:
    """An attempt that ends as it is told."""

    def __init__(self, number: int, *, agreed: bool) -> None:
        self.number, self.agreed = number, agreed
        self.marks = dict.fromkeys(("raised", "revoked", "agreed", "shrunk"), 0.0)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for mark in self.marks:
            self.marks[mark] = time.monotonic()


class _Members:
    """A communicator that meets a fault in its third loop, in the body or before it."""

    def __init__(self, *, in_body: bool) -> None:
        self.epoch, self.loops, self._in_body = 0, 0, in_body

    def attempts(self) -> Iterator[_Attempt]:
        self.loops += 1
        assert self.loops <= 3, "the others have gone on"
        if self.loops != 3:
            yield _Attempt(1, agreed=True)
            return
        if self._in_body:
            yield _Attempt(1, agreed=False)
        self.epoch += 1
        yield _Attempt(2, agreed=True)


@pytest.mark.parametrize("in_body", [True, False])
def test_a_fault_ends_the_calls_wherever_it_is_met(in_body: bool) -> None:
    members: Any = _Members(in_body=in_body)
    began_s = time.monotonic()
    phases = faults._survive(members, began_s, lambda: None, lambda: time.sleep(0.001))
    assert members.loops == 3
    total = phases[-1]
    assert total is not None
    assert 3 <= total <= 1e3 * (time.monotonic() - began_s)
    known = [ms for ms in phases[:-1] if ms is not None]
    assert (len(known) == 5) is in_body
    assert min(known) >= 0
    assert sum(known) <= total + 1e-6
    assert phases[4] is not None
    assert phases[4] >= 1


@pytest.mark.parametrize("in_body", [True, False])
def test_what_a_repeated_call_writes_is_cleared_and_no_phase_counts_that(in_body: bool) -> None:
    members: Any = _Members(in_body=in_body)
    done = list[str]()

    def clear() -> None:
        time.sleep(0.1)
        done.append("clear")

    phases = faults._survive(members, time.monotonic(), clear, lambda: done.append("call"))
    assert done == ["clear", "call"] * (4 if in_body else 3)
    assert phases[4] is not None
    assert phases[4] < 100
    assert phases[-1] is not None
    assert phases[-1] < 400


def _told(phases: list[float | None], wrong: int = 0) -> faults.Told:
    return faults.Told(faults.PlannedFault(0, "kill", 2, 0.0), 3, 2, phases, wrong, "replace")


def test_a_row_has_what_anybody_saw() -> None:
    late = _told([3.0, None, None, None, 2.0, 9.0])
    row = faults._row([late, _told([1.0, 2.0, 3.0, 4.0, 5.0, 15.0], wrong=1)])
    names = ("detected", "revoked", "agreed", "shrunk", "redone", "total")
    assert [row[f"{name}_ms"] for name in names] == [3, 2, 3, 4, 5, 15]
    assert (row["wrong"], row["ranks"], row["nodes"]) == (1, 3, 2)
    assert set(BASE) <= set(row)
    assert row["iterations"] == 1
    times = [row[f"time_us_{what}"] for what in ("min", "p50", "mean", "p99", "max", "rank_mean")]
    assert times == pytest.approx([15e3, 15e3, 15e3, 15e3, 15e3, 12e3])
    row = faults._row([late])
    assert [row[f"{name}_ms"] for name in names] == [3, None, None, None, 2, 9]
    assert faults.as_line(row).split() == ["3", "kill", "shrink", "3.0", *"---", "2.0", "9.0"]


@pytest.mark.parametrize("mode", ["replace", "spawn"])
def test_a_row_says_who_took_the_seat(mode: str) -> None:
    newcomer = faults.Told(None, 3, 2, [], 0, mode)
    assert faults._row([_told([1.0] * 6), newcomer, _told([2.0] * 6)])["mode"] == mode


@pytest.mark.parametrize(("words", "says"), [
    ((1, 0, 0), "1 ranks that work, and one dies, two are left; .* -n 3"),
    ((2, 0, 0), "2 ranks that work, and one dies, two are left; .* -n 3"),
    ((2, 1, 0), "1 ranks that work, and one dies, the first does not; .* -n 2"),
    ((1, 0, 2), "1 ranks that work, and one dies, the first does not; .* -n 2"),
    ((64, 0, 0), "64 ranks that work have a bit each in a word; start at most 63"),
])  # fmt: skip
def test_too_few_and_too_many_ranks_are_refused(words: tuple[int, int, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        faults.check_ranks(*words)


@pytest.mark.parametrize("words", [(3, 0, 0), (3, 1, 0), (2, 0, 1), (63, 0, 0), (70, 7, 0)])
def test_other_numbers_of_ranks_are_taken(words: tuple[int, int, int]) -> None:
    faults.check_ranks(*words)


def test_spares_that_are_no_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSERANKS_SPARES", "abc")
    with pytest.raises(UsageError, match="CLOSERANKS_SPARES: is 'abc'; a number"):
        faults._spares()


@pytest.mark.parametrize(("size", "number", "replaced", "expected"), [
    (3, 0, 0, True), (2, 1, 0, False), (2, 1, 2, True), (2, 2, 2, False), (1, 1, 2, False),
])  # fmt: skip
def test_faults_end_when_nobody_more_can_be_lost(
    size: int, number: int, replaced: int, expected: bool
) -> None:
    members: Any = SimpleNamespace(size=size)
    assert faults._has_another(members, number, replaced) is expected
