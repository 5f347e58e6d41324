"""One lock for all threads of this package that call MPI.

Open MPI 5.0.11 lets several threads call at once.  But one thread may begin an
agreement while another thread takes a message of it.  The message is then put
off, and a pointer is written over its bits (``era_cb_fn`` of coll/ftagree).
The ranks agree on bits that no rank has given.  So threads take turns,
and no thread waits for an agreement inside the library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

#: Held by the thread that calls MPI, if other threads of this package may call it too.
TURN: Final = threading.RLock()


class Reentrant(Protocol):
    """A lock such as `threading.RLock`: only its owner can release it."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it."""

    def release(self) -> None:
        """Give it back; raises RuntimeError in another thread."""


def in_turn(lock: Reentrant, work: Callable[..., bool], *arguments: Any) -> bool | None:
    """Do some work under a lock, unless another thread has it.

    Local; never blocks.  An exception of a signal handler leaves no lock behind:
    CPython runs handlers when a call has returned, also between taking the lock
    and noting that it was taken.

    Parameters
    ----------
    lock : Reentrant
        The lock.
    work : callable
        Called with the ``arguments``.
    *arguments
        Arguments of ``work``.

    Returns
    -------
    bool or None
        Result of ``work``; None if another thread has the lock.
    """
    try:
        if not lock.acquire(blocking=False):
            return None
        done = work(*arguments)
    except BaseException:
        give_back(lock)
        raise
    lock.release()
    return done


def give_back(lock: Reentrant) -> None:
    """Give a lock back if this thread has taken it.  Local.

    Parameters
    ----------
    lock : Reentrant
        The lock.
    """
    try:
        lock.release()
    except RuntimeError:  # another thread has it
        return
