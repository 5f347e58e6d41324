"""Errors of the MPI library, translated into those of the package.

`translated`, `explained` and `opening` give the user the error of the package
for what the library has raised: `PeerLost`, `PeerLate` or `Revoked`.

`Interruptible` is a communicator for the set-up, whose collective calls raise
`Revoked` if a rank has given up.  MPI's blocking calls would wait for that
rank for ever, so these calls look for notices while they wait.  If MPI has a
call in a blocking form only, it is made when all ranks have come.

Reductions and kernels run in `QUIET`, where overflow and NaN warn nobody, as
in MPI.  `quietly` drops the MPI errors of an execution that has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from mpi4py import MPI

from closeranks.collectives.plans.schedule import Kind
from closeranks.comms.exit import exit_report, signal_handlers
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.shm.shared_folder import Untrusted
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import (
    Disagreement,
    PeerError,
    PeerLate,
    PeerLost,
    Revoked,
    Unavailable,
    UsageError,
    named,
)

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.execution import Execution
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.engine.late_ranks import Lateness
    from closeranks.comms.liveness.failure_notices import Notices


_C = TypeVar("_C", bound=MPI.Comm)
#: What was given up half-way, with its buffers.
_left: Final[list[object]] = []
#: What an error names; who knows for which call it is names that.
SET_UP: Final = "set-up"
#: Seconds that a call of the set-up goes on once a rank has given up: who has ended the call,
#: and raised an error on all ranks because of it, may be heard of before its last message.
_GRACE_S: Final = 0.1


class Interruptible(MPI.Intracomm):
    """A communicator as mpi4py knows it, whose collective calls raise `Revoked`.

    Another handle of one that lives elsewhere; made by `interruptible`.  Only what
    this package uses to set things up is of this kind.
    """

    _notices: Notices

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self._finish(self.Ibarrier())

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce to all ranks."""
        self._finish(self.Iallreduce(sendbuf, recvbuf, op), sendbuf, recvbuf)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather to all ranks."""
        self._finish(self.Iallgather(sendbuf, recvbuf), sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather to all ranks, of each as much as it has."""
        self._finish(self.Iallgatherv(sendbuf, recvbuf), sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give each rank its block."""
        self._finish(self.Ialltoall(sendbuf, recvbuf), sendbuf, recvbuf)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Give the root's to all ranks."""
        self._finish(self.Ibcast(buf, root), buf)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object of every rank to all."""
        data = np.frombuffer(MPI.pickle.dumps(sendobj), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        self.Allgather(np.array([data.size]), lengths)
        found, stops = np.zeros(int(lengths.sum()), np.uint8), np.cumsum(lengths)
        self.Allgatherv([data, MPI.BYTE], [found, (lengths, stops - lengths), MPI.BYTE])
        return [MPI.pickle.loads(found[stop - length : stop])
                for stop, length in zip(stops.tolist(), lengths.tolist(), strict=True)]  # fmt: skip

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of the root to all ranks."""
        text = MPI.pickle.dumps(obj) if self.rank == root else b""
        length = np.array([len(text)])
        self.Bcast(length, root)
        data = np.zeros(int(length[0]), np.uint8)
        data[: len(text)] = np.frombuffer(text, np.uint8)
        self.Bcast([data, MPI.BYTE], root)
        return obj if self.rank == root else MPI.pickle.loads(data)

    def Dup(self, info: MPI.Info | None = None) -> Interruptible:
        """Duplicate it, when all have come."""
        return self._made(lambda plain: plain.Dup(info))

    def Split(self, color: int = 0, key: int = 0) -> Interruptible:
        """Divide it, when all have come."""
        return self._made(lambda plain: MPI.Intracomm(plain.Split(color, key)))

    def _made(self, make: Callable[[MPI.Intracomm], MPI.Intracomm]) -> Interruptible:
        self.Barrier()
        with self._notices.inside:
            return interruptible(make(MPI.Intracomm(self)), self._notices)

    def _finish(self, request: MPI.Request, *buffers: Any) -> None:
        """Wait for an operation, or raise what has come between."""
        noticed_s = inf

        def look() -> None:
            nonlocal noticed_s
            if self._notices.notice is not None:
                noticed_s = min(noticed_s, time.monotonic())
                if time.monotonic() > noticed_s + _GRACE_S:
                    self._notices.check(SET_UP)

        try:
            wait(request.Test, abort=look)
        except BaseException:
            keep_left(request, *buffers)
            raise


def keep_left(*things: object) -> None:
    """Keep what was given up half-way: the library may still write there.  Local.

    Parameters
    ----------
    *things
        Requests and buffers.
    """
    _left.extend(things)


def interruptible(comm: MPI.Intracomm, notices: Notices) -> Interruptible:
    """Give another handle of a communicator, see `Interruptible`.  Local.

    Parameters
    ----------
    comm : MPI.Intracomm
        Freed by either handle.
    notices : Notices
        Of the family.

    Returns
    -------
    Interruptible
        MPI.COMM_NULL in this guise if that is what was given.
    """
    made = Interruptible(comm)
    made._notices = notices
    return made


#: Whether ranks may die, so that no message may be given up before it is through.
_CAREFUL: Final = ulfm.is_on()


def _quiet() -> Context:
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


#: Where reductions and kernels run: overflow and NaN warn nobody, as in MPI.
#: Entered under the engine's lock only.
QUIET: Final = _quiet()


def quietly(call: Callable[[], object]) -> None:
    """Call into MPI for an execution that is dead already.

    Parameters
    ----------
    call : callable
        Its MPI errors are dropped.
    """
    try:
        call()
    except MPI.Exception:
        return


def is_gone(request: MPI.Request) -> bool:
    """Return whether MPI has let go of a request of a dead execution.

    It is freed once the library has really done with it, and not before: Open MPI
    gives up a message of a revoked communicator when it is tested, and ends the
    job when that message is through after all ("Send error after request freed").

    Parameters
    ----------
    request : MPI.Request
        An error of the library means that it is gone.

    Returns
    -------
    bool
        True once its buffer is free.
    """
    try:
        return bool(request.Get_status() and request.Test())
    except MPI.Exception:
        return True


def has_ended(request: MPI.Request) -> bool:
    """Tell whether a request is over and has met no error; it is not freed.

    Parameters
    ----------
    request : MPI.Request
        Of whatever kind.

    Returns
    -------
    bool
        False as long as nobody knows.
    """
    try:
        return bool(request.Get_status())
    except MPI.Exception:
        return False


def is_over(request: MPI.Request) -> bool:
    """Test a request of a live execution; where ranks may die, as `is_gone` does.

    Parameters
    ----------
    request : MPI.Request
        Freed once it is over.

    Returns
    -------
    bool
        Whether it is; an error of the library is raised.
    """
    return bool((not _CAREFUL or request.Get_status()) and request.Test())


def test_some(requests: list[MPI.Request]) -> list[int]:
    """Return which requests have completed; raises the error of one that failed.

    Parameters
    ----------
    requests : list of MPI.Request
        Any number.

    Returns
    -------
    list of int
        Places in the list.
    """
    if _CAREFUL:
        return [place for place, request in enumerate(requests) if is_over(request)]
    statuses = [MPI.Status() for _ in requests]
    try:
        return MPI.Request.Testsome(requests, statuses) or []
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_IN_STATUS:
            raise
        codes = {status.Get_error() for status in statuses} - {MPI.SUCCESS, MPI.ERR_PENDING}
        raise MPI.Exception(min(codes)) if codes else error from error


#: How long the news of a death may come after a revocation, seconds.
NEWS_S: Final = 0.2


def grounds(execution: Execution) -> PeerError | None:
    """Tell why an execution is in vain, if it is; calls MPI.

    Local.  Its world is to be given up then.
    """
    world, deadline = execution.bound.world, execution.deadline
    world.look()
    if world.revoked:
        return world.verdict(execution.operation, _phase(execution))
    if deadline is None:
        return None
    missed = world.attendance.missed(execution.turn, deadline)
    return None if missed is None else late(execution.operation, missed, _phase(execution))


def _phase(execution: Execution) -> str:
    """Say how far it has come, and for whom it waits itself."""
    done = f"{execution.completed} of {len(execution.bound.need)} steps done"
    awaited = execution.awaited()
    return f"{done}, waiting for {named(awaited)}" if awaited else done


def verdict(world: World, whole: World, operation: str, phase: str = "") -> PeerError:
    """Say what has ended a world.  Local; may wait for the news.

    Parameters
    ----------
    world, whole : World
        That of the call, and the first of its family, which may have ended it.
    operation, phase : str
        The call, and how far it has come.

    Returns
    -------
    PeerLate, PeerLost or Revoked
        To be raised.
    """
    news = None
    if world.notices.notice is None:
        news = world.attendance.news() if whole is world else _news_of(whole, world)
    if news is not None:
        return late(operation, news, phase)
    notice = world.notices.news()
    if notice is not None:
        world.revoke()
        return world.notices.revoked(operation, notice, world.seats)
    return lost(operation, whole.seats_lost(), world.seats)


def _news_of(whole: World, world: World) -> Lateness | None:
    """Give who was late for the first of a family, if that has ended this one."""
    told = whole.attendance.told
    news = whole.attendance.news() if whole.revoked else None
    if news is None:
        return world.attendance.news()
    world.attendance.told = True  # its next call is refused, whatever this one says
    seats = [whole.seats[rank] for rank in news.ranks]
    ranks = tuple(world.seats.index(seat) for seat in seats if seat in world.seats)
    if ranks or not seats:
        return news._replace(ranks=ranks)
    whole.attendance.told = told  # nobody has been: a call there has still to name them
    return None


def late(operation: str, missed: Lateness, phase: str = "") -> PeerLate:
    """Name the late ranks, as a query of arrivals has found.  Local."""
    return PeerLate(
        operation,
        missed.ranks,
        waited_s=missed.waited_s,
        limit_s=missed.limit_s,
        phase=phase,
    )


def ended(
    operation: str, family: Family, began: World, error: BaseException | None = None
) -> BaseException:
    """Say what has ended a start, as often as somebody waits for it.  Local.

    Parameters
    ----------
    operation : str
        The call.
    family : Family
        The communicator's.
    began : World
        The family's when it was started.
    error : BaseException, optional
        What it has met; default: what has ended that world.

    Returns
    -------
    BaseException
        After a recovery one that ends attempts: the next would wait for it, too.
    """
    if began is not family.world:
        return Revoked(operation, problem="it was started before a recovery, and is void",
                       remedy="start it in each attempt", for_good=True)  # fmt: skip
    return error or began.verdict(operation)


def is_written(execution: Execution) -> bool:
    """Tell whether a rank that lives may still write into a dead execution's buffers.

    Local.
    """
    if ulfm.is_on() and execution.is_held():  # else it may never end
        return True
    senders = execution.peers(Kind.RECEIVE)
    return bool(senders) and not set(senders) <= set(ulfm.failed(execution.bound.world.traffic))


def translated(error: BaseException, execution: Execution) -> BaseException:
    """Return what the user is told of an error met while advancing.

    Local.  Errors of the MPI library that speak of dead ranks or a revoked
    communicator become `PeerLost` and `Revoked`; others stay what they are.
    """
    if not ulfm.speaks_of_failure(error, execution.bound.world.traffic):
        return error
    told = execution.bound.world.verdict(execution.operation)
    told.__cause__ = error
    return told


def explained(
    operation: str, comm: MPI.Intracomm, world: World, error: MPI.Exception
) -> PeerLost | Revoked | MPI.Exception:
    """Return what the user is told of an error of the library's own call.

    Local.  If it speaks of dead ranks or of a revoked communicator, all that was
    derived with this one is given up, and so are calls that wait for this rank;
    not what has come after a recovery that this one has not lived to see.

    Parameters
    ----------
    operation : str
        The call.
    comm : MPI.Intracomm
        Where it was made.
    world : World
        Of the first communicator of the family.
    error : MPI.Exception
        What the library raised.

    Returns
    -------
    PeerLost, Revoked or MPI.Exception
        The same error if it speaks of something else.
    """
    if not ulfm.speaks_of_failure(error, comm):
        return error
    ulfm.revoke(comm)
    ranks = ranks_in(comm, world.comm)
    told: PeerLost | Revoked = Revoked(operation)
    if MPI.UNDEFINED not in ranks:
        world.revoke()
        told = lost(operation, world.seats_lost(), [world.seats[rank] for rank in ranks])
    told.__cause__ = error
    return told


@contextmanager
def explaining(operation: str, comm: MPI.Intracomm, world: World) -> Iterator[None]:
    """Raise what the user is told of errors of the library, see `explained`.  Local."""
    with signal_handlers.DeferredHandlers():
        try:
            yield
        except MPI.Exception as error:
            raise explained(operation, comm, world, error)  # noqa: B904 - which knows its cause
        except Revoked as error:
            if error.operation == SET_UP:
                error.operation = operation
            raise


@contextmanager
def leaving() -> Iterator[None]:
    """Let the end of a process be a death if it fails, and others may not know of it.

    Local.  They may wait for it; not where it has bad input, which all have.

    Yields
    ------
    None
        While it makes what they make, too.
    """
    try:
        yield
    except (UsageError, Disagreement, Unavailable):
        raise
    except Exception:
        _leave()
        raise


def _leave() -> None:
    """Let the end of this process be a death, unless it has other work.  Local."""
    if not exit_report.has_family():
        ulfm.leave()


@contextmanager
def opening(comm: MPI.Intracomm) -> Iterator[None]:
    """Raise what the user is told of ranks that die while a communicator is opened.

    Local.  The end of this process counts as a death then, for the spares.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks that open it.

    Yields
    ------
    None
        While it is opened.

    Raises
    ------
    PeerLost
        If ranks have died.
    Revoked
        If a rank could not open it for a reason of its own, which it tells.
    """
    try:
        yield
    except (MPI.Exception, Revoked) as error:
        is_known = isinstance(error, Revoked) and error.cause
        if is_known or not (isinstance(error, Revoked) or ulfm.speaks_of_failure(error, comm)):
            raise
        dead = dead_of(comm)
        if dead:
            _leave()
            raise PeerLost("init", dead, remedy="start the job again") from error
        problem = "another rank could not open the communicator"
        raise Revoked("init", (), problem, "see what it has met", for_good=True) from error


def may_blame(error: Exception, comm: MPI.Intracomm) -> bool:
    """Tell whether peers may be to blame for an error, whatever it says.

    Local.  Where a rank has died, collectives of Open MPI 5 may end without an
    error and without its data, which others pass on: what is made of them may
    fail anyhow, before the news of the death is here.

    Parameters
    ----------
    error : Exception
        Any.
    comm : MPI.Intracomm
        Whose ranks were spoken to.

    Returns
    -------
    bool
        True for errors that say so, and for all once a rank of it has died.
    """
    if isinstance(error, PeerError):
        return True
    if not ulfm.is_on():
        return ulfm.speaks_of_failure(error, comm)
    # What came of the communicator is revoked before it: the news may be on its way.
    return _learns(lambda: ulfm.speaks_of_failure(error, comm) or bool(ulfm.failed(comm)))


@contextmanager
def blaming(operation: str, comm: MPI.Intracomm) -> Iterator[None]:
    """Tell a failure of one's own from those for want of others, see `may_blame`.

    Local.

    Parameters
    ----------
    operation : str
        What is being done.
    comm : MPI.Intracomm
        Whose ranks are spoken to.

    Yields
    ------
    None
        While it is.

    Raises
    ------
    Revoked
        In place of what peers may be to blame for.
    Untrusted
        As it is.
    """
    try:
        yield
    except Untrusted:
        raise  # all of a node meet it, and who ends first is not to blame
    except Exception as error:
        if not may_blame(error, comm):
            raise
        if isinstance(error, Revoked) and error.cause:
            error.operation = operation
            raise
        raise Revoked(operation) from error


def lost(operation: str, gone: Sequence[int], seats: Sequence[int]) -> PeerLost | Revoked:
    """Say that ranks died, or, where none did, that others have given up.  Local.

    Parameters
    ----------
    operation : str
        The call.
    gone : sequence of int
        Seats of who has died, members of the communicator of the call or not.
    seats : sequence of int
        Of its ranks.

    Returns
    -------
    PeerLost or Revoked
        To be raised.
    """
    if not gone:
        return Revoked(operation)
    return PeerLost(operation, [seats.index(seat) for seat in gone if seat in seats], seats=gone)


def dead_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Ask which ranks of a communicator have died, now that it is of no use.

    Local.  Waits for the news: a revocation is faster.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator, or a duplicate.

    Returns
    -------
    tuple of int
        Ascending; empty where nobody has died: another rank has given up.
    """
    dead: tuple[int, ...] = ()

    def learnt() -> bool:
        nonlocal dead
        dead = ulfm.failed(comm)
        return bool(dead)

    _learns(learnt)
    return dead


def _learns(news: Callable[[], bool]) -> bool:
    """Wait a moment for the library to hear something; whether it has.  Local."""
    return wait(news, progress=ulfm.listen, deadline=Deadline(NEWS_S), polite=True)
