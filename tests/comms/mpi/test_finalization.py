"""What is done before MPI ends: all of it, once, the last first."""

from __future__ import annotations

import pytest

from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import finalization


def test_the_last_task_comes_first_and_a_failure_stops_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finalization, "_TASKS", [])
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise ValueError("mine")

    finalization.before_finalize(lambda: done.append("first"))
    finalization.before_finalize(fails)
    finalization.before_finalize(lambda: done.append("last"))
    with pytest.raises(ValueError, match="mine"):
        finalization._finish()
    finalization._finish()
    assert done == ["last", "fails", "first"]


def test_a_child_that_was_forked_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalization, "_TASKS", [])
    monkeypatch.setattr(forked_child.Process, "is_child", True)
    done: list[str] = []
    finalization.before_finalize(lambda: done.append("child"))
    finalization._finish()
    assert done == []
