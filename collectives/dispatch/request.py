"""Requests: what ``I...`` calls return, and what is kept for the library.

If a program drops a request before it is over, the library goes on reading and
writing its buffers.  `keep` holds them until the library is done; the request
itself stays the library's, as with mpi4py.

MPI lets a communicator be freed while operations are under way.  With Open MPI
5.0, what is left of a non-blocking collective then ends the process.  So
`Outstanding` lists the library's operations of a communicator that nobody has
waited for yet.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from mpi4py import MPI

from closeranks.collectives.engine.error_translation import ended, has_ended, keep_left
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.fastpath.request_wait import ShortWait
from closeranks.comms.argument import patience
from closeranks.comms.exit import forked_child
from closeranks.comms.wait import Deadline, wait

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.execution import Execution
    from closeranks.comms.liveness.failure_notices import Notices


#: Kept requests; machine code looks whether there are any.
DROPPED: Final[list[tuple[MPI.Request, object]]] = []
# The end of the interpreter comes before that of MPI, and frees what stands in modules.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(DROPPED))


def keep(request: MPI.Request, buffers: object) -> None:
    """Keep the buffers of a request until it is over.

    Local; calls no MPI, for the garbage collector comes here at any time.

    Parameters
    ----------
    request : MPI.Request
        Nobody else has it any more.
    buffers : object
        What it was started with.
    """
    DROPPED.append((request, buffers))


def let_go() -> None:
    """Forget the buffers of requests that are over.  Local."""
    if DROPPED:
        over = [one for one in list(DROPPED) if has_ended(one[0])]
        for one in over:
            DROPPED.remove(one)


def kept() -> int:
    """Count the requests whose buffers are kept.  Local."""
    return len(DROPPED)


#: As many operations are noted before those that are over are forgotten.
_MANY = 64


class Outstanding:
    """What one communicator has begun by the library and may be under way.

    Attributes
    ----------
    dropped : deque of MPI.Request
        Those whose request the program has dropped; appended to at any time.
    begun : list of ref
        Requests that machine code has begun; appended to at any time.
    """

    def __init__(self) -> None:
        self.dropped: deque[MPI.Request] = deque()
        self.begun: list[ref[Any]] = []
        self._requests: deque[ref[Request]] = deque()
        self._most = _MANY
        self._followed: list[Execution] = []

    def note(self, request: Request) -> Request:
        """Note an operation of the library; gives its request.  Local."""
        if len(self._requests) + len(self.dropped) + len(self.begun) >= self._most:
            self._forget()
            self._most = max(_MANY, 2 * (len(self._requests) + len(self.dropped)))
        self._requests.append(ref(request))
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
            while self.begun:
                begun = self.begun.pop()
                if begun() is not None:
                    self._requests.append(begun)
        with suppress(IndexError):
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


class RequestOrigin:
    """What requests of calls of one kind have in common.

    Parameters
    ----------
    operation : str
        What they do.
    ended : callable
        Turns an error into what is raised, now or after a recovery.
    explain : callable, optional
        Turns an error of the library into what it is to the user.
    notices : Notices, optional
        What is heard of ranks that give up, for whom the library waits for ever;
        None where a plan hears by itself.
    outstanding : Outstanding, optional
        What is to know where the program drops one; None where the engine knows.
    """

    __slots__ = ("ended", "explain", "notices", "operation", "outstanding")

    def __init__(
        self,
        operation: str,
        ended: Callable[[BaseException], BaseException],
        explain: Callable[[MPI.Exception], Exception] | None = None,
        notices: Notices | None = None,
        outstanding: Outstanding | None = None,
    ) -> None:
        self.operation, self.ended, self.explain = operation, ended, explain
        self.notices, self.outstanding = notices, outstanding


def origin_of(service: Service, operation: str) -> RequestOrigin:
    """Say what requests of the library's have in common, in the world of now.

    Local.

    Parameters
    ----------
    service : Service
        Of the communicator.
    operation : str
        What they do.
    """
    family = service.family
    told = partial(ended, operation, family, family.world)
    explain = partial(service.explained, operation)
    return RequestOrigin(operation, told, explain, family.notices, service.outstanding)


def _itself(error: BaseException) -> BaseException:
    return error


class Request(MPI.Request):
    """A collective under way, for `MPI.Request.Waitall` like any other.

    Made by the ``I...`` methods of `Communicator`.  The buffers of the call
    belong to it until it is over, also where the program drops it.  A plan is
    driven by a thread of its own while nobody waits for it; an operation of the
    MPI library is driven by whatever MPI call comes along.
    """

    # Machine code makes one, and sets `_keeps` and `_origin`: so what else there is has
    # values here, and no constructor sets them.
    _execution: Execution | None = None
    #: What must outlive the operation; not None before that is known to be over.
    _keeps: object = None
    _origin: RequestOrigin = RequestOrigin("", _itself)
    #: The error that it has met.
    _error: BaseException | None = None
    #: Whether whoever waits hears of an error from us, not from MPI.
    _told: bool = False

    def __del__(self) -> None:
        """Keep the buffers if the library is not known to be through with them."""
        keeps = self._keeps
        if keeps is None:
            return
        self._keeps = None
        if self._execution is None and self != MPI.REQUEST_NULL:
            inner = MPI.Request(self)
            keep(inner, keeps)
            if self._origin.outstanding is not None:
                self._origin.outstanding.dropped.append(inner)

    @classmethod
    def of_library(cls, request: MPI.Request, origin: RequestOrigin, keeps: object) -> Request:
        """Wrap a request of the MPI library.  Local.

        Parameters
        ----------
        request : MPI.Request
            Not to be used otherwise from now on.  Keeps the caller's buffers alive.
        origin : RequestOrigin
            Of the call; with notices.
        keeps : object
            Stays alive until it is over: packed copies of the caller's arrays.

        Returns
        -------
        Request
            The same request.
        """
        let_go()
        made = cls(request)
        made._origin, made._keeps = origin, (request, keeps)
        return made

    @classmethod
    def of_plan(
        cls, execution: Execution, ended: Callable[[BaseException], BaseException]
    ) -> Request:
        """Make a request that completes when an execution has finished.  Local.

        Parameters
        ----------
        execution : Execution
            Started in the background.
        ended : callable
            See `RequestOrigin`.

        Returns
        -------
        Request
            A generalized request as MPI sees it.
        """

        def query(status: MPI.Status) -> None:
            del status
            if execution.error is not None and not made._told:
                raise MPI.Exception(MPI.ERR_OTHER)

        general = MPI.Grequest.Start(query)
        made = cls(general)
        made._execution, made._keeps = execution, general
        made._origin = RequestOrigin(execution.operation, ended)
        # Once, whatever signal comes between: only C runs from taking it to completing it.
        ends = map(MPI.Grequest.Complete, iter((general,)))
        execution.when_finished(lambda _: next(ends, None))
        return made

    def Wait(self, status: MPI.Status | None = None) -> bool:  # type: ignore[override]
        """Wait until the operation is over.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in.

        Returns
        -------
        bool
            True.

        Raises
        ------
        PeerError, MPI.Exception
            What made it fail.
        """
        running = self._execution
        if running is None and self._error is None:
            try:
                if ShortWait.wait(self, status):
                    return True
            except MPI.Exception as error:
                raise self._failed(error)  # noqa: B904 - which knows its cause
        forked_child.refuse_in_child(self._origin.operation)
        if running is not None and self != MPI.REQUEST_NULL:
            wait(lambda: running.finished, progress=engine().progress)
        elif self._origin.notices is not None and self != MPI.REQUEST_NULL:
            return wait(lambda: self.Test(status))
        return self._end(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether the operation is over; never blocks.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in if it is.

        Returns
        -------
        bool
            Whether the buffers may be used again.

        Raises
        ------
        PeerError, MPI.Exception
            What made it fail.
        """
        forked_child.refuse_in_child(self._origin.operation)
        running = self._execution
        if running is not None and self != MPI.REQUEST_NULL:
            engine().progress()
            return running.finished and self._end(status)
        self._check()
        try:
            over = bool(MPI.Request.Test(self, status))
        except MPI.Exception as error:
            raise self._failed(error)  # noqa: B904 - which knows its cause
        if over:
            self._keeps = None
        return over

    def wait(self, timeout_s: float | None = None) -> None:  # type: ignore[override]
        """Wait until the operation is over, or for some time.

        Parameters
        ----------
        timeout_s : float, optional
            Patience in seconds; None waits as long as it takes.

        Raises
        ------
        UsageError
            If ``timeout_s`` is no number (local); one below 0 is 0.
        TimeoutError
            After ``timeout_s``: the operation goes on and keeps its buffers.
        PeerError, MPI.Exception
            What made it fail.
        """
        if timeout_s is None:
            self.Wait()
        elif not wait(self.Test, deadline=Deadline(patience("wait", timeout_s))):
            raise TimeoutError(f"{self._origin.operation}: not finished after {timeout_s:g} s; it"
                               " goes on and keeps its buffers, wait for it again")  # fmt: skip

    def test(self) -> bool:  # type: ignore[override]
        """Tell whether the operation is over; never blocks."""
        return self.Test()

    @property
    def error(self) -> BaseException | None:
        """What it has met, told or not; None if nothing, or not yet."""
        return self._error or (self._execution.error if self._execution else None)

    @property
    def has_ended(self) -> bool:
        """Whether it is over and went well, waited for or not."""
        if self._execution is not None:
            return self._execution.finished and self._execution.error is None
        return self._error is None and has_ended(self)

    def is_done(self) -> bool:
        """Tell whether it is over, well or not; makes it go on.  Local."""
        running = self._execution
        if running is None:
            return self._error is not None or has_ended(self)
        if not running.finished:
            engine().progress()
        return running.finished

    def when_over(self, tell: Callable[[], None]) -> None:
        """Have something called when a plan is over; of the library nobody hears.

        Parameters
        ----------
        tell : callable
            In any thread, at once if it is over.
        """
        if self._execution is not None:
            self._execution.when_finished(lambda _: tell())

    def _check(self) -> None:
        """Raise what it has failed for, if it has: nobody takes it for done."""
        if self._error is not None:
            raise self._origin.ended(self._error)
        notices = self._origin.notices
        news = None if notices is None else notices.notice
        if news is not None and self != MPI.REQUEST_NULL and not has_ended(self):
            assert notices is not None
            keep_left(self, self._keeps)
            raise self._failed(notices.revoked(self._origin.operation, news))

    def _failed(self, error: BaseException) -> BaseException:
        """Note an error, and return what the user is told."""
        explain = self._origin.explain
        if isinstance(error, MPI.Exception) and explain is not None:
            error = explain(error)
        self._error = error
        return self._origin.ended(error)

    def _end(self, status: MPI.Status | None) -> bool:
        """Give the handle back; raise what went wrong."""
        self._check()
        self._told = True
        try:
            MPI.Request.Wait(self, status)
        except MPI.Exception as error:
            raise self._failed(error)  # noqa: B904 - which knows its cause
        self._keeps = None
        running, self._execution = self._execution, None
        if running is not None and running.error is not None:
            raise self._failed(running.error)
        return True
