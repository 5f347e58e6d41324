"""Calls served by one kernel in node memory, and kernels that nobody waits for.

A `ShmCall` is a blocking call that runs one kernel, with nothing between.
Machine code calls it, see `closeranks.collectives.fastpath.shortcut`.  The
order of a node's segments is that of the calls, so this way is open only while
no leaf waits for its turn.  A rank whose call goes through the engine meets
the others all the same: both ways run the same kernel and count the same
sequence number.

A kernel goes on only while its rank runs it, and the other ranks wait for it.
`Watch` is a thread that looks, every millisecond at first, for kernels that
were started and that nobody waits for.  A kernel that it finds twice goes on,
and so do the kernels that were started after it.  While the thread is awake,
no start has to wake it: a program that starts and waits at once pays only for
these looks.

`Interrupted` is a kernel whose caller was interrupted.  The handler of a
signal may raise in a call: Ctrl-C, or an alarm of the program's own.  The
other ranks know nothing of it, and the memory of a node serves one call after
the other.  So the call keeps its turn, and the next look ends it, on the
arrays that it was given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from closeranks.collectives.arguments.collective_call import arrays_of, lay_out
from closeranks.collectives.engine.leaves import (
    SHORT_BYTES,
    combiner_for,
    kernel_address,
    kernel_name,
    load_kernel,
)
from closeranks.collectives.engine.progress_engine import make_way
from closeranks.collectives.fastpath import shortcut_layout as code
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.shm.segment import STARTED
from closeranks.collectives.shm.segment_layout import START
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_lock import in_turn
from closeranks.comms.registry import Registry
from closeranks.comms.wait import longer, wait

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.shm.segment import NodeMemory


#: Seconds between two looks, and looks in vain before the thread sleeps.
_PAUSE_S: Final = 1e-3
_IN_VAIN: Final = 1000

#: The turn of each memory, by its identity, where it is that of a start.
_Found: TypeAlias = "dict[int, tuple[Any, int] | None]"


class Watch:
    """A thread that lets started kernels go on.

    Made by `watch`; any thread may call any method.

    Attributes
    ----------
    asleep : bool
        Whether it has to be woken.
    """

    def __init__(self) -> None:
        self.asleep = True
        self._memories: Registry[NodeMemory] = Registry()
        self._wake_event, self._stopping = threading.Event(), False
        self._thread: threading.Thread | None = None

    def keep(self, memory: NodeMemory) -> None:
        """Look after a node's memory as long as it lives.  Local."""
        self._memories.add(memory)

    def wake(self) -> None:
        """Begin to look.  Local; called after a start, where it is asleep."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="closeranks watch", daemon=True)
            self._thread.start()
        self._wake_event.set()

    def stop(self) -> None:
        """End the thread.  Local; called when the interpreter exits."""
        self._stopping = True
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _look(self) -> None:
        seen: _Found = {}
        vain, pause_s = 0, _PAUSE_S
        while not self._stopping:
            found, again = self._look_once(seen)
            vain = 0 if any(found.values()) else vain + 1
            pause_s = longer(pause_s) if again else _PAUSE_S
            seen = found
            if vain > _IN_VAIN:  # a start since then has set the event
                self._wake_event.wait()
                self._wake_event.clear()
                vain = 0
            self.asleep = vain == _IN_VAIN
            time.sleep(pause_s)

    def _look_once(self, seen: _Found) -> tuple[_Found, bool]:
        """Let go on what was there before; gives what is there, and if it was."""
        found: _Found = {}
        again = False
        for memory in self._memories:
            turn = found[id(memory)] = _started(memory)
            if turn and seen.get(id(memory)) is turn:
                again = True
                while turn and turn[0].advance():
                    turn = _started(memory)
        return found, again


def _started(memory: NodeMemory) -> tuple[Any, int] | None:
    """Give the turn of a memory if it is that of a kernel which was started."""
    try:
        turn = memory.turns[0]
    except IndexError:
        return None
    return turn if turn[1] == STARTED else None


@cache
def watch() -> Watch:
    """Return this process's watch.  Local; any thread."""
    made = Watch()
    before_finalize(made.stop)
    return made


class Interrupted:
    """One call that a kernel has begun and that nobody waits for.

    Local to make.

    Parameters
    ----------
    world : World
        Whose node memory is used; owns this from now on.
    step : callable
        Runs the kernel for a moment; True once it is over.
    keeps : object
        Stays alive until then: the arrays of the call.
    """

    def __init__(self, world: World, step: Callable[[], bool], keeps: object) -> None:
        self._memory, self._lock = world.node_memory, threading.RLock()
        self._began = int(self._memory.state[START])
        self._step: Callable[[], bool] | None = step
        self._keeps: object = keeps
        world.own(self)
        watcher = watch()
        watcher.keep(self._memory)
        self._memory.enter(self, STARTED)
        watcher.wake()

    def advance(self) -> bool:
        """Let it go on for a moment; True once it is over.  Local; any thread.

        Whatever line another signal comes between, the kernel ends once and the turn
        is left once.
        """
        return bool(in_turn(self._lock, self._go_on))

    def _go_on(self) -> bool:
        turns = self._memory.turns
        if self._step is None or not turns or turns[0][0] is not self:
            return False
        if self._memory.state[START] == self._began and not self._step():
            return False
        self._memory.leave()
        self._step = self._keeps = None
        return True

    def close(self) -> None:
        """Run no kernel any more.  Local."""
        with self._lock:
            self._step = self._keeps = None

    revoke = close


#: So many short ways are kept ready; the first to come is the first to go.
_MOST = 256
#: More bytes than any call has.
_ANY_BYTES: Final = 1 << 62
#: Operations that have a short way.
OPERATIONS = frozenset(
    {
        "allreduce", "allgather", "alltoall", "barrier", "bcast", "reduce",
        "reduce_scatter_block",
    }
)  # fmt: skip


class ShmKind(NamedTuple):
    """What calls have in common that one `ShmCall` serves; no size.

    Attributes
    ----------
    operation, size_class, root, element
        As in `closeranks.collectives.arguments.call_key.Agreed`.
    op : int
        Identity of the reduction; the `ShmCall` keeps that alive.
    arrays : tuple of object
        Types of both arrays, see `dtypes`.
    """

    operation: str
    size_class: int
    root: int
    op: int
    element: object
    arrays: tuple[object, object]


class ShmCall:
    """Calls of one operation, size class, type, op and root that a kernel serves.

    Local to make.

    Parameters
    ----------
    world : World
        Whose node memory is used; all its ranks share one node.
    demand : CollectiveCall
        A call of that kind.

    Attributes
    ----------
    address : int
        Of what machine code knows about it, see
        `closeranks.collectives.fastpath.shortcut_layout`.
    kind : ShmKind
        Of the calls that it runs.
    """

    __slots__ = (
        "_entry",
        "_finish",
        "_fixed",
        "_keeps",
        "_leave",
        "_operation",
        "_world",
        "address",
        "kind",
    )

    def __init__(self, world: World, demand: CollectiveCall) -> None:
        self._world, self._operation = world, demand.operation
        self.kind = kind_of(demand)
        memory = world.node_memory
        combiner = combiner_for(demand.operation, demand.reducer, demand.dtype)
        frame = memory.frame(combiner, demand.dtype.itemsize, demand.root)
        self._finish, self._leave = self._finished, self._left
        entry = self._entry = np.zeros(code.ENTRY, np.int64)
        self._fixed = frame.ctypes.data, memory.state.ctypes.data
        entry[code.E_SHORT] = SHORT_BYTES
        for place, nbytes in ((code.E_SHORT_KERNEL, 0), (code.E_LONG_KERNEL, _ANY_BYTES)):
            entry[place] = kernel_address(kernel_name(demand.operation, nbytes))
        entry[code.E_FRAME], entry[code.E_STATE] = self._fixed
        entry[code.E_ROOT] = demand.root
        entry[code.E_QUEUE], entry[code.E_SEQUENCE] = memory.queue_at, world.sequence_at
        entry[code.E_IN_PLACE] = demand.operation in ("allreduce", "reduce")
        forms = {"bcast": code.ONE, "barrier": code.NO_ARRAY, "reduce": code.AT_ROOT}
        entry[code.E_FORM] = forms.get(demand.operation, code.PAIR)
        entry[code.E_FINISH], entry[code.E_LEAVE] = id(self._finish), id(self._leave)
        self._keeps = (demand.op, *self.kind.arrays)
        if demand.operation in REDUCING:
            entry[code.E_OP] = id(demand.op)
        entry[[code.E_GIVEN_TYPE, code.E_TAKEN_TYPE]] = list(map(id, self.kind.arrays))
        items = [getattr(one, "itemsize", 0) or 1 for one in self.kind.arrays]
        entry[[code.E_GIVEN_ITEM, code.E_TAKEN_ITEM]] = items
        entry[[code.E_GIVEN_BLOCKS, code.E_TAKEN_BLOCKS]] = _blocks(demand)
        self.address = entry.ctypes.data

    @property
    def calls(self) -> int:
        """How many calls machine code has served."""
        return int(self._entry[code.E_CALLS])

    def followed_by(self, other: ShmCall | None) -> None:
        """Let calls of this size that are of another kind be another one's.  Local."""
        self._entry[code.E_NEXT] = 0 if other is None else other.address

    def ready(
        self, demand: CollectiveCall, quick: Callable[..., object] | None = None
    ) -> Callable[[], None]:
        """Prepare a call whose arguments may be of any form.  Local.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        quick : callable, optional
            What runs it at once if its arguments let it, see `Shortcuts.quick`.

        Returns
        -------
        callable
            Runs it, once.
        """
        memory = lay_out(demand)
        given = 0 if memory.input is None else memory.input.ctypes.data
        taken = 0 if memory.output is None else memory.output.ctypes.data

        def serve() -> None:
            if (
                quick is not None
                and memory.finish is None
                and self.at_once(quick, *demand.arguments)
            ):
                return
            self._run(given, taken, demand.nbytes, memory)
            if memory.finish is not None:
                memory.finish()

        return serve

    def at_once(self, quick: Callable[..., object], *arguments: object) -> bool:
        """Run a call at once if its arguments let it; False where nothing was done."""
        if quick(*arguments) is not None:
            return False
        self._entry.data[code.E_CALLS] -= 1  # the caller counts it
        return True

    def _finished(self, *_: object, **__: object) -> None:
        """Wait for the kernel that machine code has begun."""
        self._wait(*self._noted())

    def _left(self, *arguments: object, **named: object) -> None:
        """Leave that kernel to others: its end was not waited for."""
        self._let_go_on(self._step(*self._noted()), (arguments, named))

    def _noted(self) -> tuple[int, int, int]:
        """Give the arrays and bytes of the call that machine code is at."""
        given, taken, nbytes = self._entry[[code.E_GIVEN, code.E_TAKEN, code.E_BYTES]].tolist()
        return given, taken, nbytes

    def _run(self, given: int, taken: int, nbytes: int, keeps: object) -> None:
        """Run the kernel to its end, be it after an exception has come between."""
        counters, number = self._world.node_memory.state, None
        began = counters[START]
        try:
            number = self._world.sequence()  # from here on the others wait for this rank
            self._wait(given, taken, nbytes)
        except BaseException:
            if number is not None and counters[START] == began:  # which its end moves on
                self._let_go_on(self._step(given, taken, nbytes), keeps)
            raise

    def _let_go_on(self, step: Callable[[], bool], keeps: object) -> None:
        if not self._world.revoked:
            Interrupted(self._world, step, keeps)

    def _step(self, given: int, taken: int, nbytes: int) -> Callable[[], bool]:
        kernel = load_kernel(kernel_name(self._operation, nbytes))
        return partial(kernel, *self._fixed, given, taken, nbytes)

    def _wait(self, given: int, taken: int, nbytes: int) -> None:
        step = self._step(given, taken, nbytes)
        if not step():
            wait(step, progress=partial(make_way, self._world), abort=self._abort)

    def _abort(self) -> None:
        self._world.check(self._operation)


class ShmCalls:
    """The short ways of one communicator.

    Parameters
    ----------
    open_world : callable
        Gives the communicator's world; collective at first use.
    """

    def __init__(self, open_world: Callable[[], World]) -> None:
        self._open_world = open_world
        self._known: dict[ShmKind, ShmCall] = {}

    def of(self, demand: CollectiveCall) -> ShmCall | None:
        """Give the short way of a call that goes to ``shared``, or None.  Local."""
        kind = kind_of(demand)
        known = self._known.get(kind)
        if known is None:
            world = self._open_world()
            if not is_near(world, demand):
                return None
            if len(self._known) == _MOST:
                self._known.pop(next(iter(self._known)))
            known = self._known[kind] = ShmCall(world, demand)
        return known


def dtypes(demand: CollectiveCall) -> tuple[object, object]:
    """Give the types of a call's arrays; None where a kernel cannot take them.

    Parameters
    ----------
    demand : CollectiveCall
        One of `OPERATIONS`.

    Returns
    -------
    tuple of object
        Of the first array and of the second one.
    """
    first, second = arrays_of(demand)
    if first is None:
        first, second = second, first
    if demand.operation in REDUCING and {first, second or first} != {demand.dtype}:
        return None, None  # summed in another type than the arrays have
    return first, second or first


def kind_of(demand: CollectiveCall) -> ShmKind:
    """Give the kind of a call that goes to ``shared``.  Local."""
    agreed, local = demand.key
    return ShmKind(
        agreed.operation, agreed.size_class, agreed.root, local.op, agreed.element, dtypes(demand)
    )


def _blocks(demand: CollectiveCall) -> tuple[int, int]:
    """Give the blocks of the first array of a call, and of the second one."""
    blocks = {"allgather": (1, demand.size), "alltoall": (demand.size,) * 2}
    blocks["reduce_scatter_block"] = demand.size, 1
    return blocks.get(demand.operation, (1, 1))


def lacks_kernel(demand: CollectiveCall) -> bool:
    """Tell whether no kernel reduces as a call asks; the same on all ranks.  Local."""
    if demand.operation not in REDUCING:
        return False
    return combiner_for(demand.operation, demand.reducer, demand.dtype) is None


def is_near(world: World, demand: CollectiveCall) -> bool:
    """Tell whether calls like this one may take the short way.  Local.

    Parameters
    ----------
    world : World
        Of the communicator.
    demand : CollectiveCall
        A call that goes to ``shared``.

    Returns
    -------
    bool
        Only where a kernel runs it alone.
    """
    if demand.operation not in OPERATIONS or not world.kernels:
        return False
    if not demand.nbytes and demand.operation != "barrier":
        return False
    if not 1 < world.size == world.node.size:
        return False
    if demand.operation not in REDUCING:
        return True
    return combiner_for(demand.operation, demand.reducer, demand.dtype) is not None
