"""A plan tied to memory: what a rank needs to run it again and again.

Binding lowers the steps once, lays out the scratch, and cuts every block whose
place is known into views that MPI and NumPy take without further work.  So
running allocates nothing.  Blocks that a register places are cut while the
plan runs.

Binding also cuts long messages into pieces where links are slow.  An MPI
library sends a long message only after a handshake.  Over TCP the answer waits
behind the data that its sender is sending, so each direction waits for the
other in turn.  Four nodes that exchanged 1 MiB at 200 Mbit/s used 57 % of the
wire.  In pieces of 32 KiB, which need no handshake, they used 96 %.  Where
links are fast, the handshake is cheap and saves a copy: there messages stay
whole, up to what MPI can count, see `closeranks.comms.mpi.messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine.leaves import Run, chosen
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, Leaf, StepTable, lower
from closeranks.collectives.reduction.op import Reducer
from closeranks.comms.mpi import messages
from closeranks.comms.mpi import messages as message_limits
from closeranks.comms.topology.topology import Topology
from closeranks.errors import PlanError, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World


#: Below the eager limit of the TCP transports we know (64 KiB less a header).
PIECE_BYTES = 32 << 10
#: A link is slow if a piece takes it longer than this, in seconds.
SLOW_S = 100e-6


def piece_bytes(topology: Topology, rank: int, peer: int) -> int:
    """Return the longest message between two ranks, in bytes.

    The same seen from both ends, so that both cut a message alike.

    Parameters
    ----------
    topology : Topology
        With links agreed by all ranks.
    rank, peer : int
        The two ends.
    """
    level = topology.level_index(rank, peer)
    if level >= len(topology.levels) - 1:
        return messages.LONGEST
    rate = topology.link(rank, peer).bytes_per_s
    is_slow = rate and PIECE_BYTES / rate > SLOW_S
    return min(PIECE_BYTES, messages.LONGEST) if is_slow else messages.LONGEST


Array = NDArray[Any]

#: How a step is run: the fast ways first, GENERAL is worked out at run time.
DROPPED: Final = 0
SEND: Final = 1
RECEIVE: Final = 2
REDUCE: Final = 3
COPY: Final = 4
LONG_SEND: Final = 5
LONG_RECEIVE: Final = 6
GENERAL: Final = 7

#: The place of memory that is attached no more.
NOWHERE: Final = (-1, 0)
_UNITS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}


class Bound:
    """A plan on one rank, tied to the caller's memory and its own scratch.

    Local.  One execution at a time may use it; the caller's memory may be
    changed for another with `attach` between executions.

    Parameters
    ----------
    plan : Plan
        The plan.
    rank : int
        This rank.
    input, output : ndarray, 1-D, dtype uint8, or None
        The caller's memory, contiguous; at least as many bytes as the plan's
        items take.  Both may be the same or overlap as `IN_PLACE` allows.
        None where the rank has none.
    dtype : numpy dtype
        The element; ``np.dtype((np.void, n))`` where NumPy does not know it.
    reducer : Reducer, optional
        What REDUCE steps do; needed if there are any.
    world : World
        Whose traffic carries the messages.
    events : sequence of callable
        ``() -> bool`` for every EVENT the plan names: whether it has happened.
    arrives : callable, optional
        ``() -> bool``: whether the input is there; until then nothing is done.
    epilogue : callable, optional
        Runs once per execution when the result is there, before anybody is
        told: divides by the number of ranks, unpacks, ...
    table : StepTable, optional
        The lowered steps, if another binding of the same plan has them.
    keeps : object, optional
        Stays alive as long as this does.

    Attributes
    ----------
    table : StepTable
        The lowered steps.
    ways, payloads : list
        How each step is run (`SEND` ... `GENERAL`), and with what.
    need : list of int
        Unfinished steps each step waits for.
    following : list of list of int
        Who waits for each step.
    peers, slots : list of int
        Of every step.
    first : list of int
        Steps that wait for none.
    optional : frozenset of int
        Steps the result does not wait for.
    memory : list of ndarray or None
        Every buffer as a typed 1-D array; None until a register sizes it.
    native : dict of int to Native or Shared
        Leaves that the MPI library or a kernel runs, by step.
    written_out : tuple of Leaf
        Leaves that became the moves they stand for, see `leaf_runs`.
    busy : bool
        Whether an execution is using it.
    layout : object
        What the compiled interpreter made of it, see `numbers.Layout`.
    attached : int
        How often memory was attached.
    places : tuple of tuple of int
        Address and bytes of input and output, 0 where there is none.
    lent : bool
        Whether the caller's memory is given back at the end of each execution:
        a bytearray that somebody has a view of cannot grow, a map not close.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        *,
        input: Array | None,
        output: Array | None,
        dtype: np.dtype[Any],
        reducer: Reducer | Callable[[Array, Array], object] | None = None,
        world: World,
        events: Sequence[Callable[[], bool]] = (),
        arrives: Callable[[], bool] | None = None,
        epilogue: Callable[[], None] | None = None,
        table: StepTable | None = None,
        keeps: object = None,
    ) -> None:
        self.plan, self.rank, self.dtype, self.world = plan, rank, np.dtype(dtype), world
        self.reducer, self.events, self.epilogue = reducer, tuple(events), epilogue
        self.arrives = arrives
        self.native: dict[int, Run] = {}
        self.written_out: tuple[Leaf, ...] = ()
        if table is None or table.has_leaves:
            script, steps, self.native, self.written_out = chosen(
                plan, rank, world, reducer, self.dtype
            )
            table = lower(script, steps)
        self.table = table
        self.busy, self.lent, self._keeps = False, False, keeps
        self.layout: object = None
        self.attached = 0
        self._spares: dict[int, Array] = {}
        self._columns()
        self.memory = self._allocated()
        self.ways = [GENERAL] * len(self.table)
        self.payloads: list[Any] = [None] * len(self.table)
        self._attach(input, output, range(len(self.table)))

    def attach(self, input: Array | None, output: Array | None) -> None:
        """Use other memory of the caller from the next execution on.

        Local; costs nothing where the memory is the same as before.

        Parameters
        ----------
        input, output : ndarray, 1-D, dtype uint8, or None
            As for the class.

        Raises
        ------
        UsageError
            If either is too small, or an execution is under way.
        """
        if self.busy:
            raise UsageError(str(self.plan), "still running", "wait for it before attaching")
        if (place_of(input), place_of(output)) != self.places:
            self._attach(input, output, self._touching)
        self._given = (input, output)

    def release(self) -> None:
        """End an execution; another may begin.  Local."""
        if self.lent:
            self._let_go()
        self.busy = False  # last: another thread may begin at once

    def _let_go(self) -> None:
        """Forget the caller's memory, which `attach` brings back."""
        self.memory[INPUT] = self.memory[OUTPUT] = None
        for step in self._touching:
            self.payloads[step] = None
        self.places, self._given = (NOWHERE, NOWHERE), (None, None)
        self.epilogue = self.arrives = None

    def _allocated(self) -> list[Array | None]:
        """Give the memory of all buffers; the caller's comes later."""
        memory: list[Array | None] = [None, None]
        for buffer in range(2, len(self.table.buffers)):
            items = int(self.table.buffers[buffer, 0])
            memory.append(None if items < 0 else np.empty(items, self.type_of(buffer)))
        for buffer, values in self.table.constants.items():
            memory[buffer] = np.array(values, np.int64)
        return memory

    def type_of(self, buffer: int) -> np.dtype[Any]:
        """Return the dtype of a buffer's items."""
        unit = int(self.table.buffers[buffer, 1])
        return _UNITS[unit] if unit else self.dtype

    def spare(self, buffer: int, items: int) -> Array:
        """Return an array of ``items`` for a buffer that a register sizes.

        Local.  The array of an earlier execution is used again where it is large
        enough.
        """
        kept = self._spares.get(buffer)
        if kept is None or len(kept) < items:
            kept = self._spares[buffer] = np.empty(items, self.type_of(buffer))
        return kept[:items]

    def held_bytes(self) -> int:
        """Return the bytes of scratch that are kept for the next execution.  Local."""
        own = self.memory[OUTPUT + 1 :]
        return sum(kept.nbytes for kept in (*self._spares.values(), *own) if kept is not None)

    def static_sends(self) -> list[tuple[int, int]]:
        """List receiver and bytes of messages whose place is known before.  Local."""
        rows = self.table.rows
        is_known = (rows[:, columns.KIND] == Kind.SEND) & (
            rows[:, columns.FLAGS] & columns.SYMBOLIC == 0
        )
        return [
            (
                int(row[columns.PEER]),
                Block(*row[columns.BLOCK : columns.BLOCK + 5].tolist()).items
                * self.type_of(int(row[columns.BLOCK])).itemsize,
            )
            for row in rows[is_known]
        ]

    def _columns(self) -> None:
        """Take the columns that every execution walks out of the table."""
        rows = self.table.rows
        self.peers: list[int] = rows[:, columns.PEER].tolist()
        self.slots: list[int] = rows[:, columns.SLOT].tolist()
        self.need: list[int] = rows[:, columns.NEED].tolist()
        self.kinds: list[int] = rows[:, columns.KIND].tolist()
        self.following = self.table.successors_of()
        self.first = [step for step, need in enumerate(self.need) if need == 0]
        flags = rows[:, columns.FLAGS]
        messages = np.isin(rows[:, columns.KIND], (Kind.SEND, Kind.RECEIVE))
        if not self.plan.algorithm.symbolic and (flags[messages] & columns.SYMBOLIC).any():
            raise PlanError(
                str(self.plan),
                "a message's size is known only while the plan runs",
                "declare the algorithm with symbolic=True",
            )
        self.optional = frozenset(np.flatnonzero(flags & columns.OPTIONAL).tolist())
        used = rows[:, [columns.BLOCK, columns.SOURCE]]
        user = ((used == INPUT) | (used == OUTPUT)).any(axis=1)
        self._touching: list[int] = np.flatnonzero(user).tolist()

    def _attach(self, input: Array | None, output: Array | None, steps: Sequence[int]) -> None:
        for buffer, given in ((INPUT, input), (OUTPUT, output)):
            self.memory[buffer] = self._typed(buffer, given)
        self.places = (place_of(input), place_of(output))
        self._given = (input, output)
        self.attached += 1
        rows = self.table.rows
        for step in steps:
            row = rows[step].tolist()
            if not row[columns.FLAGS] & columns.SYMBOLIC:
                self._cut(step, row)

    def _typed(self, buffer: int, given: Array | None) -> Array | None:
        items = int(self.table.buffers[buffer, 0])
        if items < 0 and buffer == OUTPUT:
            return None  # each run allocates its own
        if given is None:
            given = np.empty(0, np.uint8)
        if items < 0:
            return given
        wanted = items * self.dtype.itemsize
        if given.nbytes < wanted:
            name = ("input", "output")[buffer]
            raise UsageError(
                str(self.plan),
                f"{name} of {given.nbytes} bytes, needs {wanted}",
                "pass a larger one",
            )
        return given[:wanted].view(self.dtype)

    def view(self, block: Block, memory: Sequence[Array | None]) -> Array:
        """Return a static block of ``memory``: 1-D, or one row a run where strided."""
        buffer, start, count, repeat, stride = block
        whole = memory[buffer]
        assert whole is not None
        if repeat == 1 or stride == count:
            return whole[start : start + count * repeat]
        if start < 0 or start + (repeat - 1) * stride + count > len(whole):
            raise PlanError(str(self.plan), f"{block} leaves its {len(whole)} items")
        size = whole.itemsize
        return np.lib.stride_tricks.as_strided(
            whole[start:], (repeat, count), (stride * size, size), writeable=whole.flags.writeable
        )

    def _cut(self, step: int, row: list[int]) -> None:
        """Prepare one step whose blocks all have a known place."""
        kind = row[columns.KIND]
        if kind > Kind.COPY:
            return
        block = self.view(Block(*row[columns.BLOCK : columns.BLOCK + 5]), self.memory)
        if kind in (Kind.SEND, Kind.RECEIVE):
            self._cut_message(step, kind == Kind.SEND, block)
            return
        source = self.view(Block(*row[columns.SOURCE : columns.SOURCE + 5]), self.memory)
        if kind == Kind.COPY:
            if _same(source, block):
                self.ways[step] = DROPPED
                return
            shape = source.shape if block.ndim == 1 else block.shape
            if source.ndim == 1 or block.ndim == 1 or source.shape == block.shape:
                self.ways[step] = COPY
                self.payloads[step] = _bytes(block.reshape(shape)), _bytes(source.reshape(shape))
        elif source.ndim == block.ndim == 1:
            self.ways[step], self.payloads[step] = REDUCE, (source, block)

    def _cut_message(self, step: int, sending: bool, view: Array) -> None:
        packed = view if view.ndim == 1 else np.empty(view.shape, view.dtype)
        pieces = self._pieces(self.peers[step], packed.reshape(-1).view(np.uint8))
        if packed is view and len(pieces) == 1:
            self.ways[step] = SEND if sending else RECEIVE
            self.payloads[step] = pieces[0]
        else:
            self.ways[step] = LONG_SEND if sending else LONG_RECEIVE
            self.payloads[step] = (pieces, None if packed is view else packed, view)

    def longest_piece(self, peer: int) -> int:
        """Return the longest message to or from a rank, as `piece_bytes`."""
        return piece_bytes(self.world.topology, self.rank, peer)

    def _pieces(self, peer: int, raw: Array) -> list[tuple[Any, int, Any]]:
        """Cut a message as both its ends do, see `message_segments`."""
        if self.plan.algorithm.symbolic:
            parts = message_limits.cut_openly(raw.nbytes, self.longest_piece(peer))
        else:
            parts = message_limits.cut(raw.nbytes, self.longest_piece(peer))
        return [message(raw[part]) for part in parts]


def message(view: Array) -> tuple[Any, int, Any]:
    """Return what mpi4py sends or receives fastest: (memory, bytes, MPI.BYTE).

    Parameters
    ----------
    view : ndarray, 1-D, contiguous
        The items; their memory is kept alive by the result.
    """
    from mpi4py import MPI

    raw = view.view(np.uint8)
    return MPI.buffer.frombuffer(raw, readonly=not raw.flags.writeable), raw.nbytes, MPI.BYTE


def place_of(given: Array | None) -> tuple[int, int]:
    """Return address and bytes of an array, 0 where there is none.  Local."""
    return (0, 0) if given is None else (given.__array_interface__["data"][0], given.nbytes)


def _bytes(view: Array) -> Array:
    """See a contiguous view as bytes; a strided one as it is."""
    return view.view(np.uint8) if view.ndim == 1 else view


def _same(source: Array, block: Array) -> bool:
    """Whether two views are the same items of the same memory."""
    return (
        source.shape == block.shape
        and source.strides == block.strides
        and place_of(source)[0] == place_of(block)[0]
    )
