"""Persistent operations: planned once, started again and again.

`Outliving` says what becomes of an operation in a recovery.
"""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from closeranks.collectives.arguments.native_handover import hand_over, is_idle, pack_again, prepare
from closeranks.collectives.dispatch.persistent_starts import Startable
from closeranks.collectives.engine.error_translation import ended, has_ended, is_gone
from closeranks.collectives.selection import call_options
from closeranks.comms.argument import patience
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.mpi.mpi_lock import in_turn
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerError, Revoked, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.engine.bound_plan import Bound


#: Operations whose buffers have one size for any number of ranks, and those with a root.
SIZELESS: Final = frozenset({"allreduce", "barrier", "bcast", "exscan", "reduce", "scan"})
ROOTED: Final = frozenset({"bcast", "gather", "gatherv", "reduce", "scatter", "scatterv"})


class Outliving(Startable):
    """A persistent operation that is made again at its first start after a recovery."""

    _service: Service
    _demand: CollectiveCall
    _call: tuple[Any, ...]
    _options: Any
    _root_seat: int
    _newcomers: Any
    _under_way: Request | None
    _bound: Bound | None
    _ready: MPI.Prequest | None
    _left: MPI.Prequest | None
    _stale: bool
    _running: bool
    _closed: bool
    _void: bool
    _owed: bool

    @property
    def under_way(self) -> bool:
        """Whether it has been started and not been waited for."""
        return self._running or (
            self._under_way is not None and self._under_way != MPI.REQUEST_NULL
        )

    def revoke(self) -> None:
        """Serve no more starts before the communicator has recovered."""
        if not self._closed:
            self._owed = self.under_way
            self._closed = self._stale = True
            self._void = self._void or not self._is_through()
            self._bound = None
            if self._void or not self._running:  # else who waits has still to look at it
                self._left = self._ready if self._running else None
                self._ready = None

    def spoil(self) -> None:
        """Note that nobody is to have the result of a start that is to be repeated."""
        if self._running and self._ready is not None:
            self._left = self._ready
        self._void = self._void or self._owed or self.under_way

    def _is_through(self) -> bool:
        """Tell whether nothing is under way but what has ended well.  Local."""
        if self._running:
            return self._ready is not None and has_ended(self._ready)
        return self._under_way is None or self._under_way.has_ended

    def is_gone(self) -> bool:
        """Tell whether the library is through with a start that was revoked.

        Local.

        Returns
        -------
        bool
            If not, it may still write where the result was to be.
        """
        return self._left is None or is_gone(self._left)

    def _bind_again(self) -> None:
        """Be what the communicator makes of the same call after a recovery.  Collective."""
        service, demand = self._service, self._demand
        service.guard.refuse_shut(demand.operation)
        service.family.world.check(demand.operation)
        problem = self._outlived(service)
        if problem:
            raise Revoked(demand.operation, problem=problem, remedy="make a new one", for_good=True)
        token = call_options.ACTIVE.set(self._options)
        try:
            fresh = service.prepare(demand.operation, *self._call)
        finally:
            call_options.ACTIVE.reset(token)
        fresh._options = self._options
        service.world.disown(fresh)
        lock = self.__dict__.get("_lock")  # for who advances it meanwhile
        self._drop_handle()
        self.__class__, self.__dict__ = type(fresh), fresh.__dict__
        self._inherit_handle(fresh)
        if lock is not None and "_lock" in self.__dict__:
            self.__dict__["_lock"] = lock
        service.world.own(self)

    def _outlived(self, service: Service) -> str:
        """Say why it cannot be bound again, or nothing."""
        demand = self._demand
        if not self._stale:
            return "the persistent operation is closed"
        if self._newcomers != service.family.newcomers:
            return "newcomers make theirs in an order that the others cannot know"
        if demand.size != service.size and demand.operation not in SIZELESS:
            return f"its buffers are for {demand.size} ranks, there are {service.size}"
        if demand.operation in ROOTED and (
            demand.root >= service.size or self._root_seat != seat_of(service, demand.root)
        ):
            return f"rank {demand.root} is another process now"
        return ""


def seat_of(service: Service, rank: int) -> int:
    """Give the seat of a rank, whatever the epoch."""
    world = service.family.world
    return world.seats[ranks_in(service.plain, world.comm)[rank]]


class Persistent(Outliving):
    """A collective with its buffers, ready to be started any number of times.

    An `MPI.Prequest`: mpi4py's ``Startall``, ``Waitall`` and the like take it
    among others.  Made by the ``..._init`` methods of `Communicator`, on every
    rank; started by every rank in the same order.  Between `start` and the end of
    `wait` the buffers belong to it.  After a recovery the next start makes it
    again, unless its buffers are for another number of ranks.

    Parameters
    ----------
    service : Service
        Who serves it.
    demand : CollectiveCall
        The call.
    algorithm : str
        "native" or a name of the catalogue.
    call : tuple
        What it was made with: the algorithm that was wanted, then the arguments.
    info : MPI.Info
        Hints for the library.
    """

    CALLS_IN_CHILD = frozenset({"close", "Free"})

    def __init__(
        self,
        service: Service,
        demand: CollectiveCall,
        algorithm: str,
        call: tuple[Any, ...],
        info: MPI.Info = MPI.INFO_NULL,
    ) -> None:
        self._service, self._demand, self._algorithm = service, demand, algorithm
        self._call, self._stale = call, False
        self._root_seat = seat_of(service, demand.root)
        #: What the block says in which it was made, and who had come by then.
        self._options = call_options.ACTIVE.get()
        self._newcomers = service.family.newcomers
        self._under_way: Request | None = None
        self._closed = self._void = False
        #: Whether nobody had waited for the last start when all was given up.
        self._owed = False
        #: In which it is started.
        self._era, self._notices = service.family.world, service.family.notices
        self._bound: Bound | None = None
        #: The library's own persistent operation, for starts without a deadline.
        self._ready: MPI.Prequest | None = None
        #: The same, where it was under way when all was given up.
        self._left: MPI.Prequest | None = None
        #: What is left to do at the end of a start; taken by who does it.
        self._finishes: list[Callable[[], None]] = []
        #: Held by the thread that asks the library: it takes no two.
        self._library = threading.RLock()
        #: Whether the library alone serves its starts.
        self._is_library = False
        self._tally = service.counters.tally(demand.operation, algorithm)
        if algorithm != "native":
            plan = service.bindings.plan(demand, algorithm)
            self._bound = service.bindings.bind(plan, demand)
        elif not service.choice.is_timed():
            # On every rank, whatever its strides: the library's other calls do not
            # meet its persistent ones.
            self._given = hand_over(demand)
            self._ready = prepare(service.plain, self._given, info)
        self._running = False
        forked_child.guard_object(self)

    def offer(self) -> None:
        """Let mpi4py start it and wait for it.  Local; called once it is made."""
        ready = self._ready
        careful = ulfm.is_on() or self._service.family.faults is not None
        # Else each start has something to be done that the library does not know.
        if ready is not None and not careful and not self._demand.foreign:
            self._is_library = self._given.finish is None
        if ready is None or not self._is_library:
            self._listen()
        elif is_idle(ready) or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            self._take_handle(ready)
        else:
            # Until the first start: `Waitall` of MPICH 5.0 waits for its own persistent
            # collectives as long as they have not been started.
            self._make_handle()

    def _listen(self) -> None:
        """Hear of starts that mpi4py makes, from now on, before each call."""
        self._is_library = False
        if self._tag is None:
            self._make_handle()
        self._service.listen()

    def _settle_handle(self) -> None:
        """Have the handle for the start that is to come.  Local; nothing is under way."""
        ready = self._ready
        if ready is None or self._needs_engine():
            self._listen()
        elif self._tag is not None:
            self._drop_handle()
            self._take_handle(ready)

    def __enter__(self) -> Persistent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    @property
    def algorithm(self) -> str:
        """Which algorithm it uses."""
        return self._algorithm

    @property
    def is_void(self) -> bool:
        """Whether the last start has no result, nor will have one."""
        return self._void

    def start(self) -> None:
        """Start it once more.

        Collective in MPI's sense: does not wait for other ranks.

        Raises
        ------
        UsageError
            If it is under way (local).
        Revoked
            If it was closed, or its communicator was (local).
        """
        self._look()
        self._tell()
        if self._closed:
            self._bind_again()
            self.start()
            return
        if self.under_way:
            if not (self._is_done() and self._was_waited_for()):
                operation, number = self._demand.operation, self._service.calls.begin()
                twice = UsageError(operation, "started twice", "wait() before the next start()")
                self._service.refused(number, operation, twice)
                raise twice
            self.Wait()  # at once
            self.start()
            return
        if self._is_library:
            self._settle_handle()
        ends = self._start_handle()
        try:
            self._begin(ends)
        except BaseException:
            self._let_end(ends)
            raise

    def _begin(self, ends: list[MPI.Message]) -> None:
        """Begin it, whoever has started the handle; note what ends it."""
        self._service.calls.begin()
        if self._notices.notice is not None:
            self._service.guard.refuse_late(self._demand.operation)
        if self._closed:
            raise Revoked(self._demand.operation, problem="a recovery came before its start",
                          remedy="start it by its own start() once, or make a new one")  # fmt: skip
        self._keep()
        self._tally[0] += 1
        if self._ready is None or (self._needs_engine() and not self._is_library):
            self._under_way = self._service.request(self._demand, self._algorithm, self._bound)
            self._under_way.when_over(partial(self._let_end, ends))
            self._messages = ends
            return
        if self._running:
            self._ready.Wait()  # at once: mpi4py has waited for the handle only
        self._under_way = None
        if self._demand.foreign:
            pack_again(self._demand, self._given)
        if self._given.finish is not None:
            self._finishes[:] = [self._given.finish]
        self._running = True  # before: the handler of a signal may raise in between
        try:
            self._ready.Start()
        except MPI.Exception as error:
            raise self._explained(error)  # noqa: B904 - which knows its cause
        self._messages = ends

    def wait(self, timeout_s: float | None = None) -> None:  # type: ignore[override]
        """Wait until it is over; at once if it has not been started since the last time.

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
            name = self._demand.operation
            raise TimeoutError(f"{name}: not finished after {timeout_s:g} s; it goes on and"
                               " keeps its buffers, wait for it again")  # fmt: skip

    def test(self) -> bool:  # type: ignore[override]
        """Tell whether it is over, or not under way; never blocks."""
        return self.Test()

    def close(self) -> None:
        """Let go of the buffers, after waiting for what is under way.

        Local; harmless twice.
        """
        if self._closed or forked_child.is_child():
            return
        if not self._void:
            self.wait()
        self._closed = True
        self._drop_handle()
        if self._ready is not None:
            self._ready.Free()
        self._bound = self._under_way = self._ready = None
        self._service.world.disown(self)

    def _needs_engine(self) -> bool:
        """Tell whether a start has a deadline, or the last one had and is not over."""
        family, choice = self._service.family, self._service.choice
        is_timed = (family.overrides or family.timeout_s is not None) and choice.is_timed()
        return is_timed or (self._under_way is not None and self.under_way)

    def _keep(self) -> None:
        """Meet the faults of a start; let an attempt copy what it overwrites."""
        faults, attempt = self._service.family.faults, self._service.family.attempt
        if faults is not None:
            faults.slow_down()
            faults.reach(self._demand.operation)
            faults.leave()
        if attempt is not None:
            attempt.keep(self._demand)
            attempt.follow_start(self)

    def Start(self) -> None:
        """Start it once more, see `start`."""
        self.start()

    def Wait(self, status: MPI.Status | None = None) -> bool:  # type: ignore[override]
        """Wait until it is over, see `wait`.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in.

        Returns
        -------
        bool
            True.
        """
        self._look()
        self._tell()
        if self.__dict__.get("_started"):  # a recovery has changed what it is
            return self.Wait(status)
        self._check_void()
        if self._ready is not None and self._under_way is None:
            try:
                wait(partial(self._is_through_library, status), abort=self._hear)
            except MPI.Exception as error:
                raise self._explained(error)  # noqa: B904 - which knows its cause
            self._end()
        elif self._under_way is not None:
            try:
                self._under_way.Wait(status)
            finally:
                self._end_handle(None)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether it is over, see `test`.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in if it is.

        Returns
        -------
        bool
            Whether the buffers may be used again.
        """
        self._look()
        self._tell()
        if self.__dict__.get("_started"):
            return self.Test(status)
        self._check_void()
        if self._ready is not None and self._under_way is None:
            try:
                with self._library:
                    over = bool(self._ready.Test(status))
            except MPI.Exception as error:
                raise self._explained(error)  # noqa: B904 - which knows its cause
            if over:
                self._end()
            return over
        over = self._under_way is None or self._under_way.Test(status)
        if over:
            self._end_handle(None)
        return over

    def _is_done(self) -> bool:
        """Tell whether what was begun is over, well or not; makes it go on.  Local."""
        if self._void:
            return True
        if self._running:
            ready = self._ready
            return ready is None or bool(in_turn(self._library, has_ended, ready))
        request = self._under_way
        return request is None or request.is_done()

    def _is_through_library(self, status: MPI.Status | None) -> bool:
        """Ask the library, which takes no two threads that do."""
        with self._library:
            return self._ready is None or bool(self._ready.Test(status))

    def _hear(self) -> None:
        """Raise if a rank has given up, for whom the library would wait for ever."""
        if self._notices.notice is not None:
            self._running, self._void = False, True
            self._left, self._ready = self._ready, None
            self._service.guard.refuse_late(self._demand.operation)

    def _check_void(self) -> None:
        """Raise what has ended the last start, if anything has: nobody takes it for done."""
        family = self._service.family
        if self._void and (self._under_way is None or self._era is not family.world):
            self._running = False
            raise ended(self._demand.operation, family, self._era)

    def _explained(self, error: MPI.Exception) -> BaseException:
        """Return what the user is told of an error of the library."""
        self._running = False
        if self._era is not self._service.family.world:  # whose successor has met nothing
            self._void = True
            return ended(self._demand.operation, self._service.family, self._era)
        told = self._service.explained(self._demand.operation, error)
        self._void = isinstance(told, PeerError)
        return told

    def _finish(self) -> None:
        """Do what is left when the library is through, once a start; in any thread."""
        while self._finishes:
            self._finishes.pop()()

    def _end(self) -> None:
        self._finish()
        self._running = False
        self._end_handle(None)

    def Free(self) -> None:
        """Let go of the buffers, see `close`."""
        self.close()
