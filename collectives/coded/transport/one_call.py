"""One call of an object at a time, and what is left to do once it is over."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from closeranks.errors import UsageError


class OneCall:
    """Refuses a call inside of another one, and one of another thread meanwhile.

    A context manager: the call is its body.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    """

    def __init__(self, where: str) -> None:
        self._where, self._lock = where, Lock()
        self._last: Callable[[], None] | None = None

    def __enter__(self) -> None:
        """Begin a call.

        Raises
        ------
        UsageError
            If one is under way.
        """
        if not self._lock.acquire(blocking=False):
            remedy = "wait until it has returned; compute_part makes no such call"
            raise UsageError(self._where, "a step is under way", remedy)

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._last is not None:
            self.finally_do(self._last)

    def finally_do(self, last: Callable[[], None]) -> None:
        """Do something, or let the call that is under way do it at its end.

        Local.

        Parameters
        ----------
        last : callable
            Harmless twice.
        """
        self._last = last
        if self._lock.acquire(blocking=False):
            try:
                last()
            finally:
                self._lock.release()
