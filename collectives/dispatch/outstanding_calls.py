"""The library's operations of a communicator that nobody has waited for yet.

MPI lets a communicator be freed while they are under way.  With Open MPI 5.0
what is left of a non-blocking collective ends the process then.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from mpi4py import MPI

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.engine.execution import Execution

#: As many operations are noted before those that are over are forgotten.
_MANY = 64


class Outstanding:
    """What one communicator has begun by the library and may be under way.

    Attributes
    ----------
    dropped : deque of MPI.Request
        Those whose request the program has dropped; appended to at any time.
    """

    def __init__(self) -> None:
        self.dropped: deque[MPI.Request] = deque()
        self._requests: deque[ref[Request]] = deque()
        self._most = _MANY
        self._followed: list[Execution] = []

    def note(self, request: Request) -> Request:
        """Note an operation of the library; gives its request.  Local."""
        if len(self._requests) + len(self.dropped) >= self._most:
            self._forget()
            self._most = max(_MANY, 2 * (len(self._requests) + len(self.dropped)))
        self._requests.append(ref(request))
        request.outstanding = self
        return request

    def follow(self, execution: Execution) -> None:
        """Note an operation that the engine follows.  Local."""
        self._followed = [one for one in self._followed if not _has_ended(one)]
        self._followed.append(execution)

    def are_over(self) -> bool:
        """Tell whether none is under way any more.  Local; calls MPI."""
        self._forget()
        return not self._requests and not self.dropped and all(map(_has_ended, self._followed))

    def _forget(self) -> None:
        """Forget what is over; other threads may do so, and note more, meanwhile."""
        with suppress(IndexError):  # another thread was quicker
            for _ in range(len(self._requests)):
                noted = self._requests.popleft()
                if not _is_over(noted()):
                    self._requests.append(noted)
        with suppress(IndexError):
            for _ in range(len(self.dropped)):
                request = self.dropped.popleft()
                if not _is_over(request):
                    self.dropped.append(request)


def _has_ended(execution: Execution) -> bool:
    """Whether an execution is over, well or not.  Local."""
    return execution.finished or execution.error is not None


def _is_over(request: MPI.Request | None) -> bool:
    """Whether an operation is over, well or not; its request is not freed."""
    try:
        return request is None or request == MPI.REQUEST_NULL or bool(request.Get_status())
    except MPI.Exception:
        return True
