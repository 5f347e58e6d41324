"""A thread that does one thing after the other, whatever one of them raises."""

from __future__ import annotations

import threading

import pytest

from closeranks.checkpoint.control.pending import Worker


def test_what_one_task_raises_is_shown_and_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: shown.append(told.exc_value))
    worker, done, problem = Worker("test"), threading.Event(), ValueError("no")

    def fails() -> None:
        raise problem

    worker.order(fails)
    worker.order(done.set)
    assert done.wait(10)
    assert shown == [problem]
    worker.stop()
