"""A thread that does one thing after the other."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import TypeAlias

_Task: TypeAlias = Callable[[], None]


class Worker:
    """Does what is ordered, in that order; its thread starts with the first order.

    Parameters
    ----------
    name : str
        Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def order(self, task: _Task) -> None:
        """Have something done, which tells of its failure itself.  Local."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._orders.put(task)

    def stop(self) -> None:
        """Let the thread end after what was ordered; nobody waits for it.  Local."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread = None

    def _serve(self) -> None:
        """Do what is ordered, until nothing more will be; what one raises ends no other."""
        while (task := self._orders.get()) is not None:
            try:
                task()
            except Exception:
                told = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(told))
