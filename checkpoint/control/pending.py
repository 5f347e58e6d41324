"""A save that goes on in the background: how far it is, its thread, its pace.

`Pending` tells how far a save has come, `Worker` is the thread that does one
save after the other, and `Pace` keeps parity out of the way of the program's
own messages.

A program that communicates has the wire first.  Meanwhile one segment of
parity is sent at a time, with none ahead of it.  Then the wire is left alone
for nine times as long as a segment takes.  So parity has a tenth of the wire
at most, and a save takes ten times as long at most.  If the program has been
silent for a second, or waits for the save, parity has the wire.

The time of a segment is the shortest that any has taken: in longer ones this
rank has waited for other ranks, which rest.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final, TypeAlias

from closeranks.comms.exit import forked_child
from closeranks.comms.numeric_argument import real, shown
from closeranks.errors import CheckpointError, UsageError

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
        """Let the thread end after the orders so far, without a wait.  Local."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread = None

    def _serve(self) -> None:
        """Do the orders until the last one; an error of one ends no other."""
        while (task := self._orders.get()) is not None:
            try:
                task()
            except Exception:
                told = (*sys.exc_info(), threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(told))


class Milestone:
    """A point that a save reaches, or not.

    Local; any thread may wait.

    Parameters
    ----------
    step : int
        Of the save.
    what : str
        For the text of an error: the state of a save at this point.
    """

    def __init__(self, step: int, what: str) -> None:
        self._step, self._what = step, what
        self._event, self._waiting = threading.Event(), set[int]()
        self._error: Exception | None = None
        self._given_up: tuple[int, str] | None = None
        #: Whether somebody has been told of the error.
        self.is_told = False

    @property
    def error(self) -> Exception | None:
        """Why it was not reached."""
        if self._given_up is not None and self._error is None:
            problem = "step {} is not written to disk: {}".format(*self._given_up)
            self._error = CheckpointError("persist", problem, "wait for committed")
        return self._error

    def reach(self, error: Exception | None = None) -> None:
        """Say that it is reached, or why not; the first word counts.

        Local.

        Parameters
        ----------
        error : Exception, optional
            Why not.
        """
        if not self._event.is_set():
            self._error = error
            self._event.set()

    def give_up(self, step: int, why: str) -> None:
        """Say that it was never meant to be reached: the error is no news.

        Local.

        Parameters
        ----------
        step : int
            The caller's number, checked.
        why : str
            Why not.
        """
        self._given_up, self.is_told = (step, why), True
        self._event.set()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Say that this thread waits for it.  Local."""
        self._waiting.add(me := threading.get_ident())
        try:
            yield
        finally:
            self._waiting.discard(me)

    def is_awaited(self) -> bool:
        """Tell whether a thread waits for it.  Local; never blocks."""
        return bool(self._waiting)

    def done(self) -> bool:
        """Tell whether it is reached, or will not be.  Local; never blocks."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is reached.

        Local.

        Parameters
        ----------
        timeout_s : float, optional
            Seconds; for ever if not given.

        Raises
        ------
        CheckpointError, PeerError
            Why it was not.
        UsageError
            If ``timeout_s`` is no time.
        TimeoutError
            If it takes longer; the save goes on.
        """
        forked_child.refuse_in_child("wait")
        limit_s = _limit_s(timeout_s)
        with self.awaited():
            reached = self._event.wait(limit_s)
        if not reached:
            raise TimeoutError(f"step {self._step}: not {self._what} after {limit_s:g} s")
        if (error := self.error) is not None:
            self.is_told = True
            raise error


def _limit_s(timeout_s: float | None) -> float | None:
    """Give a time limit; a time longer than any clock counts is none."""
    if timeout_s is None or (isinstance(timeout_s, float) and timeout_s == inf):
        return None
    found = real(timeout_s)
    if found is None or found < 0:
        raise UsageError("wait", f"timeout_s={shown(timeout_s)}", "give seconds from 0 on, or None")
    return found if found < threading.TIMEOUT_MAX else None


class Pending:
    """A save that goes on in the background.

    Made by `Checkpointer.save`.

    Parameters
    ----------
    step : int
        The caller's number.

    Attributes
    ----------
    step : int
        As given.
    copied : Milestone
        The caller's arrays are free.
    committed : Milestone
        All ranks have it, with parity: it can be restored.
    persisted : Milestone
        It is on disk, all of it, if `Checkpointer` was told where.
    is_due : bool
        Whether it was time to save; if not, nothing is done or awaited.
    """

    def __init__(self, step: int) -> None:
        self.step, self.is_due = step, True
        self.copied = Milestone(step, "copied")
        self.committed = Milestone(step, "committed")
        self.persisted = Milestone(step, "on disk")
        #: Why an earlier save is not on disk, if this one is to tell; the same on all ranks.
        self.report: Exception | None = None

    def __repr__(self) -> str:
        if not self.is_due:
            return f"<Pending step {self.step}: not due>"
        reached = [name for name in ("copied", "committed", "persisted")
                   if (mark := getattr(self, name)).done() and mark.error is None]  # fmt: skip
        return f"<Pending step {self.step}: {', '.join(reached) or 'nothing yet'}>"

    def fail(self, error: Exception) -> None:
        """Say of all that is not reached yet that it will not be.

        Local.

        Parameters
        ----------
        error : Exception
            Why not.
        """
        for mark in (self.copied, self.committed, self.persisted):
            mark.reach(error)

    def await_end(self) -> None:
        """Wait until it is committed, or will not be; raises no failure.  Local."""
        while not self.committed.done():
            try:
                self.committed.wait(60.0)
            except TimeoutError:
                continue
            except Exception:
                self.committed.is_told = False

    def stays(self, why: str) -> None:
        """Say that it will not be written to disk.

        Local.

        Parameters
        ----------
        why : str
            Why not.
        """
        self.persisted.give_up(self.step, why)

    @property
    def untold(self) -> Exception | None:
        """Why it is not committed, if that was not raised yet; counts as raised now."""
        error = self.copied.error or self.committed.error
        if error is None:
            return None
        every = (self.copied, self.committed, self.persisted)
        marks = [mark for mark in every if mark.error is error]
        if any(mark.is_told for mark in marks):
            return None
        for mark in marks:
            mark.is_told = True
        return error


def skipped(step: int) -> Pending:
    """Give the `Pending` of a save that was skipped: another one was under way."""
    pending = Pending(step)
    pending.fail(CheckpointError("save", f"step {step} skipped: the save before goes on",
                                 "wait for it, or pass on_busy='wait'"))  # fmt: skip
    for mark in (pending.copied, pending.committed, pending.persisted):
        mark.is_told = True
    return pending


def not_due(step: int) -> Pending:
    """Give the `Pending` of a save that was not due."""
    pending = Pending(step)
    pending.is_due = False
    for mark in (pending.copied, pending.committed, pending.persisted):
        mark.reach()
    return pending


#: Of the wire, while the program communicates.
SHARE: Final = 0.1
#: Seconds without a call after which a program is silent.
SILENT_S: Final = 1.0
#: Seconds between two looks whether anything has changed, and longest rest after a segment.
_LOOK_S, _LONGEST_S = 2e-3, 2.0


class Pace:
    """Rests between segments.

    Parameters
    ----------
    calls : callable
        Counts the calls that the program has made of its communicator.
    flying : callable
        Tells whether one of them is under way.
    is_awaited : callable
        Tells whether the program waits for the save.
    clock, sleep : callable
        The clock in seconds, and the sleep.
    """

    def __init__(
        self,
        calls: Callable[[], int],
        flying: Callable[[], bool],
        is_awaited: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._calls, self._flying, self._is_awaited = calls, flying, is_awaited
        self._clock, self._sleep = clock, sleep
        self._count, self._heard_s = calls(), -SILENT_S
        self._shortest_s = float("inf")

    def yields(self) -> bool:
        """Tell whether the program has the wire first.  Local; any thread."""
        now, count = self._clock(), self._calls()
        if self._flying() or count != self._count:
            self._count, self._heard_s = count, now
        return now - self._heard_s < SILENT_S and not self._is_awaited()

    def rest(self, took_s: float) -> None:
        """Leave the wire to the program for a while, if it communicates.

        Local.

        Parameters
        ----------
        took_s : float
            Time of a segment that was sent alone.
        """
        self._shortest_s = min(self._shortest_s, took_s)
        rest_s = min((1 / SHARE - 1) * self._shortest_s, _LONGEST_S)
        end = self._clock() + rest_s
        while (left_s := end - self._clock()) > 0 and self.yields():
            self._sleep(min(left_s, _LOOK_S))
