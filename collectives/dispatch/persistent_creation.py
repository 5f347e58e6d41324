"""The creation of persistent operations, and those whose starts are kernels.

`persistent` makes an operation, which keeps the algorithm that it is made
with.  If no algorithm is known to be the fastest yet, `rehearse` settles the
trial by calls of that kind on memory of our own.

The starts of `ShmPersistent` are kernels in node memory.  A start runs the
kernel with little patience: it lays out this rank's data and, where the others
are there already, may be over.  Else the wait goes on with the kernel.
Meanwhile the operation has its turn in the memory.  The next call that uses
the memory lets the kernel go on, see `closeranks.collectives.shm.segment`.  If
there is none, `closeranks.collectives.fastpath.shm_call` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.collective_call import CallMemory, lay_out
from closeranks.collectives.dispatch.persistent_operation import Persistent
from closeranks.collectives.engine import interpreter
from closeranks.collectives.engine.leaves import combiner_for, kernel_name, load_kernel
from closeranks.collectives.engine.progress_engine import make_way
from closeranks.collectives.fastpath.shm_call import is_near, watch
from closeranks.collectives.selection.call_options import AUTO, NATIVE, SHARED
from closeranks.collectives.selection.choice import UNATTENDED_S
from closeranks.collectives.selection.trial import RACES
from closeranks.collectives.shm import segment_layout as words
from closeranks.collectives.shm.segment import STARTED
from closeranks.comms.mpi.mpi_lock import in_turn
from closeranks.comms.wait import wait
from closeranks.errors import PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.selection.choice import Choice


#: How often a start looks whether the others have come, where every rank has a core:
#: a microsecond or two, which is less than to come back later.
_LOOKS = 64


class ShmPersistent(Persistent):
    """A persistent operation that takes little time among the ranks of one node.

    As `Persistent`, which also serves its starts while others use the memory.

    Parameters
    ----------
    service : Service
        Who serves it.
    demand : CollectiveCall
        A call that `is_brief` accepts.
    call : tuple
        As for `Persistent`.
    """

    def __init__(self, service: Service, demand: CollectiveCall, call: tuple[Any, ...]) -> None:
        super().__init__(service, demand, SHARED, call)
        self._world, self._memory = service.world, service.world.node_memory
        self._family, self._lock = service.family, threading.RLock()
        laid = lay_out(demand)
        self._make_way = partial(make_way, self._world)
        self._watch = watch()
        self._watch.keep(self._memory)
        self._laid: CallMemory | None = laid  # whose addresses the kernel has
        self._started = self._over = self._going = False
        #: How far the memory was when its kernel began, None if that waits for its turn.
        self._began: int | None = None
        self._counters = self._memory.state.data
        combiner = combiner_for(demand.operation, demand.reducer, demand.dtype)
        frame = self._memory.fresh_frame(combiner, demand.dtype.itemsize, demand.root)
        self._hasty = frame.copy()
        self._hasty[words.SPINS] = min(_LOOKS, frame[words.SPINS])
        self._hasty[words.YIELDS] = 0
        kernel = load_kernel(kernel_name(demand.operation, demand.nbytes))
        places = [0 if part is None else part.ctypes.data for part in (laid.input, laid.output)]
        rest = self._memory.state.ctypes.data, *places, demand.nbytes
        self._frame = frame
        self._look_once = partial(kernel, self._hasty.ctypes.data, *rest)
        self._stay = partial(kernel, frame.ctypes.data, *rest)

    @property
    def under_way(self) -> bool:
        """Whether it has been started and not been waited for."""
        return self._started or super().under_way

    def start(self) -> None:
        """Start it once more, see `Persistent.start`."""
        if self.__class__ is not ShmPersistent:  # a recovery has changed what it is
            self.start()
            return
        if self._started or self._under_way is not None or self._closed:
            super().start()
            return
        self._look()
        self._tell()
        self._begin(None)

    def _begin(self, ends: list[MPI.Message] | None) -> None:
        """Begin it, see `Persistent`; None where the handle is still to be started."""
        before = self._before() if self._memory.turns else ()
        if (before and not _all_started(before)) or self._closed or self._family.overrides:
            # A timeout is the engine's to keep.  Of a start that mpi4py has waited for it
            # is not noted that it was over.
            self._started = self._over = False
            super()._begin(self._start_handle() if ends is None else ends)
            return
        if self._notices.notice is not None:
            self._service.guard.refuse_late(self._demand.operation)
        self._service.calls.begin()
        if self._family.attempt is not None or self._family.faults is not None:
            self._keep()
        self._tally[0] += 1
        self._world.sequence()
        self._began, over = None if before else self._counters[words.START], False
        try:
            over = not before and self._look_once()
        finally:  # a signal may take the caller away: the others wait for this rank
            self._started, self._over = True, over
            if not over:
                self._memory.enter(self, STARTED)
                if self._watch.asleep:
                    self._watch.wake()
            self._messages = self._start_handle() if ends is None else ends
            if over:
                self._let_end()

    Start = start

    def advance(self) -> bool:
        """Let a start that is not over go on for a moment; True once it is.

        Local; any thread.
        """
        return self._go_on(stays=False)

    def _first(self) -> tuple[Any, int] | None:
        """Give whose turn it is; any thread may end it."""
        try:
            return self._memory.turns[0]
        except IndexError:
            return None

    def _before(self) -> tuple[tuple[Any, int], ...]:
        """Let what comes first go on, if the others have come; gives what is left."""
        while (first := self._first()) and _all_started((first,)) and first[0].advance():
            pass
        return tuple(self._memory.turns)

    def _go_on(self, *, stays: bool) -> bool:
        first = self._first()
        if first is not None and first[0] is not self:
            self._before()
        return bool(
            in_turn(self._lock, self._go_on_alone, self._stay if stays else self._look_once)
        )

    def _go_on_alone(self, kernel: Callable[[], bool]) -> bool:
        """Let it go on, while no other thread does; a signal may come between any lines."""
        if self._closed or self._going:
            return False  # its memory is gone, or soon will be; or a signal's handler asks
        first = self._first()
        if first is None or first[0] is not self:
            return self._over  # else not its turn, or bound again meanwhile and not started
        self._going = True
        try:
            over: bool = self._over or self._run(kernel)
            self._over = over
            if over:
                self._memory.leave()
                self._let_end()
        finally:
            self._going = False
        return over

    def _run(self, kernel: Callable[[], bool]) -> bool:
        """Run its kernel, unless that has ended and nobody has noted it."""
        last = self._counters[words.START]  # which the end of its kernel moves on
        if self._began is None:
            self._began = last
        return bool(last != self._began or kernel())

    def Wait(self, status: MPI.Status | None = None) -> bool:  # type: ignore[override]
        """Wait until it is over, see `Persistent.wait`.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in.

        Returns
        -------
        bool
            True.
        """
        if self.__class__ is not ShmPersistent:
            return self.Wait(status)
        self._look()
        if not self._started:
            super().Wait(status)
            self._under_way = None
            return True
        if not self._over:
            self._check()
            wait(partial(self._go_on, stays=True), progress=self._make_way, abort=self._check)
        return self._end_with(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Tell whether it is over, see `Persistent.test`.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in if it is.

        Returns
        -------
        bool
            Whether the buffers may be used again.
        """
        if self.__class__ is not ShmPersistent:
            return self.Test(status)
        self._look()
        if not self._started:
            over = super().Test(status)
            self._under_way = None if over else self._under_way
            return over
        if not self._over:
            self._check()
        if not self.advance():
            self._make_way()
            return False
        return self._end_with(status)

    def close(self) -> None:
        """Let go of the buffers, see `Persistent.close`."""
        super().close()
        self._laid = None

    def revoke(self) -> None:
        """Serve no more starts, see `Persistent.revoke`; no kernel runs any more."""
        with self._lock:
            super().revoke()
            self._started = False  # `Persistent` says whether there is a result

    def _is_done(self) -> bool:
        return self._over or self.advance() if self._started else super()._is_done()

    def _is_through(self) -> bool:
        return self._over if self._started else super()._is_through()

    def _check(self) -> None:
        try:
            self._world.check(self._demand.operation)
        except PeerError:
            self._started, self._void = False, True
            raise

    def _end_with(self, status: MPI.Status | None) -> bool:
        self._started = False
        self._end_handle(status)
        if self._tag is None and status is not None:
            MPI.Request().Wait(status)  # as of a request that is over
        return True


def _all_started(turns: tuple[tuple[Any, int], ...]) -> bool:
    """Tell whether all turns are those of starts, none of a plan's step."""
    return all(step == STARTED for _, step in turns)


def is_brief(service: Service, demand: CollectiveCall, choice: Choice) -> bool:
    """Tell whether starts of a persistent operation can be kernels.  Local.

    Ranks need not agree: either way runs the same kernel.

    Parameters
    ----------
    service : Service
        Who serves it.
    demand : CollectiveCall
        A call that goes to ``shared``.
    choice : Choice
        What is known of its kind.

    Returns
    -------
    bool
        Only where bytes lie side by side, without a timeout, and where a call
        takes so little time that a thread for it costs more than it hides.
    """
    if not is_near(service.world, demand) or service.world.node_memory.turns:
        return False
    if service.choice.is_timed() or choice.seconds(SHARED) >= UNATTENDED_S:
        return False
    parts = [part for part in (demand.source, demand.target) if part is not None]
    copied = demand.in_place and len(parts) == 2  # `lay_out` copies what is overwritten
    return not copied and all(part.direct for part in parts) and lay_out(demand).finish is None


#: Calls that are predicted to take longer are not rehearsed, seconds.
_LONGEST_S: Final = 1e-3


def _zeros(nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)


#: Arguments of a call, from its bytes and the number of ranks.
_ARGUMENTS: Final[dict[str, Callable[[int, int], tuple[Any, ...]]]] = {
    "allgather": lambda n, size: (_zeros(n), _zeros(n * size)),
    "allreduce": lambda n, _: (_zeros(n), _zeros(n), MPI.BOR),
    "alltoall": lambda n, size: (_zeros(n * size), _zeros(n * size)),
    "barrier": lambda _n, _: (),
    "bcast": lambda n, _: (_zeros(n), 0),
    "reduce": lambda n, _: (_zeros(n), _zeros(n), MPI.BOR, 0),
    "reduce_scatter_block": lambda n, size: (_zeros(n * size), _zeros(n), MPI.BOR),
}


def rehearse(service: Service, demand: CollectiveCall, choice: Choice) -> None:
    """Settle the trial of a kind of calls, if that is quickly done.

    Collective over the service's ranks, whose choice is the same.

    Parameters
    ----------
    service : Service
        Serves the calls.
    demand : CollectiveCall
        One of them; its buffers are left alone.
    choice : Choice
        What is known about them.
    """
    operation = demand.operation
    if choice.source in ("forced", "table", "tried") or operation not in _ARGUMENTS:
        return
    if choice.predicted_s > _LONGEST_S or not demand.commutative:
        return
    if not service.family.threaded or service.family.tuning.name(operation, demand.nbytes):
        return  # trials do not decide
    arguments = _ARGUMENTS[operation](demand.nbytes, demand.size)
    read = partial(service.arguments.read, operation, "", "auto", arguments)
    sent = service.counters.sent.copy()
    agreed = demand.agreed
    service.chooser.hasten(agreed)
    if agreed.native:  # the answer may be another one, and machine code would not ask
        now = service.chooser.settled(agreed).algorithm
        service.shortcuts.keep_only(operation, agreed.size_class, now)
    for _ in range(RACES):
        for _ in range(service.chooser.calls_to_settle(agreed)):
            service.serve("auto", read, read())
    service.counters.sent.clear()
    service.counters.sent.update(sent)


def persistent(
    service: Service,
    operation: str,
    algorithm: str,
    arguments: tuple[Any, ...],
    info: MPI.Info,
    *,
    shown: bool,
) -> Persistent:
    """Make a persistent operation.  Collective.

    Parameters
    ----------
    service : Service
        Who serves it.
    operation, algorithm : str
        Which, and how, "auto" included.
    arguments : tuple
        As of the blocking call.
    info : MPI.Info
        Hints for the library; nothing else knows any.
    shown : bool
        Whether the program gets it, and mpi4py may start it.

    Returns
    -------
    Persistent
        Closed with the world.

    Raises
    ------
    UsageError
        If the arguments are no good (local).
    """
    if not isinstance(info, MPI.Info):
        raise UsageError(operation, f"info {info!r} is no MPI.Info", "pass MPI.INFO_NULL")
    demand = service.arguments.read(operation, "_init", algorithm, arguments)
    demand.background = True
    untimed = not (service.choice.is_timed() or service.family.devices)
    if untimed and not demand.planned and service.choice.wanted(operation, algorithm) == AUTO:
        rehearse(service, demand, service.chooser.settled(demand.agreed))
    name, _ = service.choice.decide(demand, algorithm, "_init")
    if name not in (NATIVE, SHARED):
        interpreter.prepare(service.world, together=True)
    call = (algorithm, *arguments)
    if name == SHARED and is_brief(service, demand, service.chooser.settled(demand.agreed)):
        made: Persistent = ShmPersistent(service, demand, call)
    else:
        made = Persistent(service, demand, name, call, info)
    if shown:
        made.offer()
    return service.world.own(made)
