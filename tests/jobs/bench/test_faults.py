"""What the bench of faults makes of a fault, in whatever moment a rank meets it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.jobs.bench import faults


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
    phases = faults._survive(members, began_s, lambda: time.sleep(0.001))
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


def test_a_row_has_what_anybody_saw() -> None:
    fault = faults.Fault(0, "kill", 2, 0.0)
    late = faults.Told(fault, 3, [3.0, None, None, None, 2.0, 9.0], 0)
    early = faults.Told(fault, 3, [1.0, 2.0, 3.0, 4.0, 5.0, 15.0], 1)
    session: Any = SimpleNamespace(nodes=1)
    row = faults._row(session, [late, early], "shrink")
    names = ("detected", "revoked", "agreed", "shrunk", "redone", "total")
    assert [row[f"{name}_ms"] for name in names] == [3, 2, 3, 4, 5, 15]
    assert row["wrong"] == 1
    row = faults._row(session, [late], "shrink")
    assert [row[f"{name}_ms"] for name in names] == [3, None, None, None, 2, 9]
    assert faults.as_line(row).split() == ["3", "kill", "shrink", "3.0", *"---", "2.0", "9.0"]
