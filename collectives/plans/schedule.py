"""One rank's part of a plan: steps in a graph, first as objects, then as numbers.

`Schedule` writes the steps.  A step is ready when ``need`` of the steps in
``after`` are done; a lower ``need`` than their number is early stop ("the
first n - s of n").  Steps are numbered from 0 in the order in which they are
written.  Among ready steps the lower number goes first.

`lower` turns the steps into int64 rows of fixed width and a few arrays that
the rows point into.  Every executing interpreter reads that form.  A loop over
the rows needs Python objects only for APPLY steps (a kernel's name), leaves
and events.  A compiled loop over MPI function pointers needs beside the rows
only the addresses of the buffers and the handles of
`closeranks.collectives.engine.bound_plan.Bound`.

The columns of a row are those of `closeranks.collectives.plans.table_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Buffer
from closeranks.collectives.plans.table_columns import (
    KIND,
    N_AFTER,
    N_NEXT,
    NEXT,
    OPTIONAL,
    STRIDED,
    SYMBOLIC,
    WIDTH,
    Kind,
)

#: Number of a step that was not written because it moves nothing.
NOTHING = -1


class Apply(NamedTuple):
    """A named pure kernel over blocks.

    Attributes
    ----------
    kernel : str
        Name in `closeranks.collectives.plans.apply_kernels.KERNELS`.
    writes : tuple of Block
        Blocks it writes; it reads the step's ``source``.
    sets : tuple of int
        Registers that take the integers it returns, in order.
    """

    kernel: str
    writes: tuple[Block, ...] = ()
    sets: tuple[int, ...] = ()


class Leaf(NamedTuple):
    """A collective of the MPI library (NATIVE) or a shared-memory kernel (SHARED).

    Its meaning is its expansion: the stage ``expansion`` of
    `closeranks.collectives.builders.leaf_expansions.EXPANSIONS` written over the
    same blocks, which is what simulate and cost read.

    Attributes
    ----------
    operation : str
        For instance ``allreduce``.
    level : str
        Level of the group that runs it.
    members : tuple of int
        Ranks of the group, in its order.
    expansion : str
        Name of the stage that writes it as moves.
    root : int
        Index into ``members`` of the root, where there is one.
    """

    operation: str
    level: str
    members: tuple[int, ...]
    expansion: str
    root: int = 0


class Step(NamedTuple):
    """One node of a rank's graph.

    Attributes
    ----------
    kind : Kind
        Its kind.
    peer : int
        The other rank of a SEND or RECEIVE, the event's index of an EVENT, else
        -1.
    block : Block or None
        Block to send, receive, reduce into or copy to, or a leaf's output.
    source : Block, tuple of Block or None
        Block that REDUCE and COPY read, blocks of an APPLY, a leaf's input.
    slot : int
        Tells messages between the same two ranks apart, below 2**20; of a leaf the
        first of those that it uses where it is written out, see `stage`.
    after : tuple of int
        Numbers of earlier steps.
    need : int
        How many of ``after`` must be done.
    optional : bool
        The result does not wait for it (a late message: received, then dropped).
    action : Apply, Leaf or None
        The kernel or leaf of an APPLY, NATIVE or SHARED step.
    """

    kind: Kind
    peer: int
    block: Block | None
    source: Block | tuple[Block, ...] | None
    slot: int
    after: tuple[int, ...]
    need: int
    optional: bool = False
    action: Apply | Leaf | None = None

    def __str__(self) -> str:
        """Print as one line of `Plan.text`."""
        words = [self.kind.name.lower()]
        if isinstance(self.action, Apply):
            words.append(self.action.kernel)
        elif self.action is not None:
            words.append(f"{self.action.operation} over {self.action.level}")
        if self.block is not None:
            words.append(str(self.block))
        if isinstance(self.source, Block):
            words.append(f"<- {self.source}")
        if self.peer >= 0:
            words.append(f"{'to' if self.kind == Kind.SEND else 'from'} {self.peer} #{self.slot}")
        if self.after:
            early = f"{self.need} of " if self.need < len(self.after) else ""
            words.append(f"after {early}{','.join(map(str, self.after))}")
        return " ".join(words)


After = tuple[int, ...]
_EMPTY: After = ()
_new = tuple.__new__


class Schedule:
    """Writes one rank's steps.

    Every verb returns the number of the step it wrote, or `NOTHING` where the
    block is empty: both sides of an empty message know that it is empty.
    `NOTHING` may stand in any ``after``.

    Parameters
    ----------
    rank : int
        The rank of these steps.
    input_items, output_items : int
        Elements of the caller's input and output on this rank.

    Attributes
    ----------
    buffers : list of Buffer
        Input, output, then scratch in the order of `scratch` calls.
    registers : list of int
        The bound (``at_most``) of every register.
    expected : list of int
        The value of every register that prices assume.
    constants : dict of int to ndarray of int64
        Contents of `constant` buffers from the start.
    """

    def __init__(self, rank: int, input_items: int, output_items: int) -> None:
        self.rank = rank
        self.buffers = [Buffer(input_items), Buffer(output_items)]
        self.registers: list[int] = []
        self.expected: list[int] = []
        self.constants: dict[int, NDArray[np.int64]] = {}
        self.written = 0
        self._steps: list[Step] = []

    def scratch(self, items: int, unit: int = 0) -> int:
        """Declare a scratch buffer; returns its index.

        Parameters
        ----------
        items : int
            Capacity in items, or ``~k`` to allocate it once register ``k`` is set.
        unit : int
            Bytes of an item, 0 for the plan's element.
        """
        self.buffers.append(Buffer(items, unit))
        return len(self.buffers) - 1

    def open_input(self, at_most: int) -> int:
        """Let the caller's input have any number of bytes; return their register.

        The register is set before the first step.  Blocks of the input are of bytes
        from then on.

        Parameters
        ----------
        at_most : int
            Bound of the register.
        """
        count = self.register(at_most)
        self.buffers[INPUT] = Buffer(count, 1)
        return count

    def open_output(self, count: int) -> None:
        """Let the output have as many bytes as a register says once it is set.

        Memory for it is allocated anew in each run, and is the run's result.

        Parameters
        ----------
        count : int
            The register's symbol.
        """
        self.buffers[OUTPUT] = Buffer(count, 1)

    def constant(self, values: NDArray[np.int64]) -> int:
        """Declare a buffer that holds ``values`` from the start; no step may write it.

        Parameters
        ----------
        values : ndarray of int64
            For instance counts to be sent, or numbers for a kernel.
        """
        buffer = self.scratch(len(values), 8)
        self.constants[buffer] = values
        return buffer

    def register(self, at_most: int, expected: int | None = None) -> int:
        """Declare a register; return its symbol ``~k``.

        Parameters
        ----------
        at_most : int
            A run fails where the register becomes larger.
        expected : int, optional
            The value that prices assume, if not ``at_most``.
        """
        self.registers.append(at_most)
        self.expected.append(at_most if expected is None else expected)
        return ~(len(self.registers) - 1)

    def send(
        self, peer: int, block: Block, slot: int = 0, after: After = _EMPTY, *, empty: bool = False
    ) -> int:
        """Send ``block`` to ``peer``; done when the block may be overwritten.

        ``empty`` sends a message of no bytes too (a signal).
        """
        if block[2] == 0 and not empty:
            return NOTHING
        return self._write(Kind.SEND, peer, block, None, slot, after)

    def receive(
        self,
        peer: int,
        block: Block,
        slot: int = 0,
        after: After = _EMPTY,
        *,
        empty: bool = False,
        optional: bool = False,
    ) -> int:
        """Receive into ``block`` from ``peer``; sets a count ``~k`` not yet set."""
        if block[2] == 0 and not empty:
            return NOTHING
        return self._write(Kind.RECEIVE, peer, block, None, slot, after, optional=optional)

    def reduce(self, source: Block, block: Block, after: After = _EMPTY) -> int:
        """``block = source op block``: source is the left operand (MPI_Reduce_local)."""
        if block[2] == 0:
            return NOTHING
        return self._write(Kind.REDUCE, -1, block, source, 0, after)

    def copy(self, source: Block, block: Block, after: After = _EMPTY) -> int:
        """Copy items; the shapes may differ, the number of items may not."""
        if block[2] == 0:
            return NOTHING
        return self._write(Kind.COPY, -1, block, source, 0, after)

    def apply(
        self,
        kernel: str,
        reads: Sequence[Block] = (),
        writes: Sequence[Block] = (),
        sets: Sequence[int] = (),
        after: After = _EMPTY,
        need: int | None = None,
    ) -> int:
        """Run a named kernel; ``sets`` are symbols ``~k`` of registers it computes.

        With ``need`` below ``len(after)`` the kernel is told which steps of
        ``after`` are done, as a bool array, before its other arguments.
        """
        action = Apply(kernel, tuple(writes), tuple(~s for s in sets))
        block = writes[0] if writes else None
        return self._write(Kind.APPLY, -1, block, tuple(reads), 0, after, need=need, action=action)

    def event(self, index: int, after: After = _EMPTY) -> int:
        """Wait for event ``index`` of the binding (a device's stream, a user's request)."""
        return self._write(Kind.EVENT, index, None, None, 0, after)

    def native(
        self, leaf: Leaf, source: Block, block: Block, after: After = _EMPTY, slot: int = 0
    ) -> int:
        """Run the MPI library's own collective on the group of ``leaf``."""
        return self._write(Kind.NATIVE, -1, block, source, slot, after, action=leaf)

    def shared(
        self, leaf: Leaf, source: Block, block: Block, after: After = _EMPTY, slot: int = 0
    ) -> int:
        """Run a shared-memory kernel on the group of ``leaf``."""
        return self._write(Kind.SHARED, -1, block, source, slot, after, action=leaf)

    def drain(self) -> list[Step]:
        """Hand over the steps written since the last call."""
        steps, self._steps = self._steps, []
        return steps

    def _write(
        self,
        kind: Kind,
        peer: int,
        block: Block | None,
        source: Block | tuple[Block, ...] | None,
        slot: int,
        after: After,
        *,
        need: int | None = None,
        optional: bool = False,
        action: Apply | Leaf | None = None,
    ) -> int:
        if NOTHING in after:
            after = tuple(step for step in after if step != NOTHING)
        wanted = len(after) if need is None else need
        self._steps.append(
            _new(Step, (kind, peer, block, source, slot, after, wanted, optional, action))
        )
        number = self.written
        self.written = number + 1
        return number


__all__ = ["NOTHING", "After", "Apply", "Kind", "Leaf", "Schedule", "Step"]


_NO_BLOCK = (-1, 0, 0, 1, 0)


@dataclass(frozen=True, eq=False)
class StepTable:
    """One rank's steps, lowered; all arrays are read-only.

    Attributes
    ----------
    rank : int
        The rank of these steps.
    rows : ndarray, shape (n, WIDTH), dtype int64
        One row a step, in the order of their numbers; see the module.
    after, successors : ndarray, shape (edges,), dtype int64
        Steps waited for, and waiting steps, of all steps one after the other.
    operands : ndarray, shape (m, 5), dtype int64
        Blocks that APPLY steps read and write.
    sets : ndarray, shape (s,), dtype int64
        Registers that APPLY steps set.
    buffers : ndarray, shape (b, 2), dtype int64
        Items and unit of every buffer; items ``~k`` stands for register ``k``.
    registers : ndarray, shape (r,), dtype int64
        The bound of every register.
    actions : tuple of Apply or Leaf
        Kernels and leaves of APPLY, NATIVE and SHARED steps.
    constants : dict of int to ndarray of int64
        Contents of buffers declared by `Schedule.constant`.
    """

    rank: int
    rows: NDArray[np.int64]
    after: NDArray[np.int64]
    successors: NDArray[np.int64]
    operands: NDArray[np.int64]
    sets: NDArray[np.int64]
    buffers: NDArray[np.int64]
    registers: NDArray[np.int64]
    actions: tuple[Apply | Leaf, ...]
    constants: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def has_leaves(self) -> bool:
        """Whether any step is a NATIVE or SHARED one."""
        return bool((self.rows[:, KIND] >= Kind.NATIVE).any())

    def successors_of(self) -> list[list[int]]:
        """Return the steps that wait for each step, as lists."""
        following = self.successors.tolist()
        return [
            following[first : first + n] for first, n in self.rows[:, NEXT : N_NEXT + 1].tolist()
        ]


def lower(script: Schedule, steps: Sequence[Step]) -> StepTable:
    """Write steps as a table.

    Parameters
    ----------
    script : Schedule
        The rank's script: its buffers and registers.
    steps : sequence of Step
        All its steps, in the order of their numbers.

    Returns
    -------
    StepTable
        The same steps; nothing is left out.
    """
    rows: list[int] = []
    after: list[int] = []
    operands: list[Block | tuple[int, ...]] = []
    sets: list[int] = []
    actions: list[Apply | Leaf] = []
    symbolic = [buffer.items < 0 for buffer in script.buffers]
    for step in steps:
        reads, writes, registers = _operands(step)
        single = step.source if isinstance(step.source, Block) else None
        rows += (int(step.kind), step.peer, step.slot, step.need, len(after), len(step.after))
        rows += (0, 0)
        rows += step.block or _NO_BLOCK
        rows += single or _NO_BLOCK
        rows += (-1 if step.action is None else len(actions), _flags(step, symbolic))
        rows += (len(operands), len(reads), len(writes), len(sets), len(registers))
        after += step.after
        operands += reads
        operands += writes
        sets += registers
        if step.action is not None:
            actions.append(step.action)
    table = _array(rows, WIDTH)
    edges = np.array(after, np.int64)
    successors = _successors(table, edges)
    for array in (table, edges):
        array.flags.writeable = False
    return StepTable(
        script.rank,
        table,
        edges,
        successors,
        _array([number for block in operands for number in block], 5),
        np.array(sets, np.int64),
        _array([number for buffer in script.buffers for number in buffer], 2),
        np.array(script.registers, np.int64),
        tuple(actions),
        dict(script.constants),
    )


def _operands(step: Step) -> tuple[Sequence[Block], Sequence[Block], Sequence[int]]:
    """Blocks an APPLY reads and writes and registers it sets; else nothing."""
    if not isinstance(step.action, Apply):
        return (), (), ()
    assert isinstance(step.source, tuple)
    return step.source, step.action.writes, step.action.sets  # type: ignore[return-value]


def _flags(step: Step, symbolic: Sequence[bool]) -> int:
    blocks = list(_blocks(step))
    flags = OPTIONAL if step.optional else 0
    if any(symbolic[block.buffer] or not block.is_static for block in blocks):
        flags |= SYMBOLIC
    if any(block.repeat > 1 for block in blocks):
        flags |= STRIDED
    return flags


def _blocks(step: Step) -> Iterable[Block]:
    """All blocks of a step."""
    if step.block is not None:
        yield step.block
    if isinstance(step.source, Block):
        yield step.source
    elif step.source is not None:
        yield from step.source
    if isinstance(step.action, Apply):
        yield from step.action.writes


def _array(numbers: Sequence[int], width: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64).reshape(-1, width)


def _successors(rows: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn the edges around; fills NEXT and N_NEXT."""
    waiting = np.repeat(np.arange(len(rows)), rows[:, N_AFTER])
    count = np.bincount(after, minlength=len(rows))
    rows[:, N_NEXT] = count
    rows[:, NEXT] = np.cumsum(count) - count
    found: NDArray[np.int64] = waiting[np.argsort(after, kind="stable")].astype(np.int64)
    return found
