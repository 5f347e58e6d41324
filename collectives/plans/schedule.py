"""One rank's part of a plan: steps in a graph, and the pen that writes them.

A step is ready when ``need`` of the steps in ``after`` are done; ``need``
below their number is early stop ("the first n - s of n").  Steps are numbered
from 0 in the order in which they are written; among ready steps the lower
number goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block, Buffer

#: Number of a step that was not written because it moves nothing.
NOTHING = -1


class Kind(IntEnum):
    """What a step does."""

    SEND = 1
    RECEIVE = 2
    REDUCE = 3
    COPY = 4
    APPLY = 5
    EVENT = 6
    NATIVE = 7
    SHARED = 8


class Apply(NamedTuple):
    """A named pure kernel over blocks.

    Attributes
    ----------
    kernel : str
        Name in `closeranks.collectives.plans.apply_kernels.KERNELS`.
    writes : tuple of Block
        Blocks it writes; what it reads is the step's ``source``.
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
        Level whose group runs it.
    members : tuple of int
        Ranks of the group, in its order.
    expansion : str
        Name of the stage that says what it means in moves.
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
        What it does.
    peer : int
        The other rank of a SEND or RECEIVE, the event's index of an EVENT, else
        -1.
    block : Block or None
        What is sent, received, reduced into or copied to, or a leaf's output.
    source : Block, tuple of Block or None
        What REDUCE and COPY read, the blocks an APPLY reads, a leaf's input.
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
        What an APPLY, NATIVE or SHARED step runs.
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


class Script:
    """Writes one rank's steps.

    Every verb returns the number of the step it wrote, or `NOTHING` where the
    block is empty: both sides of an empty message know that it is empty.
    `NOTHING` may stand in any ``after``.

    Parameters
    ----------
    rank : int
        The rank whose steps these are.
    input_items, output_items : int
        Elements of the caller's input and output on this rank.

    Attributes
    ----------
    buffers : list of Buffer
        Input, output, then scratch in the order of `scratch` calls.
    registers : list of int
        The bound (``at_most``) of every register.
    constants : dict of int to ndarray of int64
        What `constant` buffers hold from the start.
    """

    def __init__(self, rank: int, input_items: int, output_items: int) -> None:
        self.rank = rank
        self.buffers = [Buffer(input_items), Buffer(output_items)]
        self.registers: list[int] = []
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

    def constant(self, values: NDArray[np.int64]) -> int:
        """Declare a buffer that holds ``values`` from the start; no step may write it.

        Parameters
        ----------
        values : ndarray of int64
            For instance counts to be sent, or what a kernel needs to know.
        """
        buffer = self.scratch(len(values), 8)
        self.constants[buffer] = values
        return buffer

    def register(self, at_most: int) -> int:
        """Declare a register of at most ``at_most``; return its symbol ``~k``."""
        self.registers.append(at_most)
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


__all__ = ["NOTHING", "After", "Apply", "Kind", "Leaf", "Script", "Step"]
