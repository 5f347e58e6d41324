"""Steps as numbers: the form that every executing interpreter reads.

`lower` turns one rank's steps into int64 rows of fixed width and a few arrays
that the rows point into.  A loop over the rows needs no Python object except
for APPLY steps (a kernel's name), leaves and events; together with the
addresses of the buffers and the handles of
`closeranks.collectives.engine.bound_plan.Bound` it is all that a compiled loop
over MPI function pointers reads.

Columns of a row:

========== ====================================================================
KIND       `Kind` of the step
PEER       rank of a SEND or RECEIVE, index of an EVENT, else -1
SLOT       slot of a message
NEED       how many of the steps waited for must be done
AFTER      first place in ``after``;  N_AFTER: how many
NEXT       first place in ``successors``;  N_NEXT: how many
BLOCK      five columns: buffer, start, count, repeat, stride of ``block``
SOURCE     five columns: the same of a single ``source``
ACTION     place in ``actions``, or -1
FLAGS      `OPTIONAL`, `SYMBOLIC`, `STRIDED`, or-ed
OPERANDS   first row in ``operands``: N_READS rows that an APPLY reads, then
           N_WRITES rows that it writes
SETS       first place in ``sets``;  N_SETS: how many registers an APPLY sets
========== ====================================================================

An absent block has buffer -1.  Symbols ``~k`` stay as they are: negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import Apply, Kind, Leaf, Script, Step

KIND: Final = 0
PEER: Final = 1
SLOT: Final = 2
NEED: Final = 3
AFTER: Final = 4
N_AFTER: Final = 5
NEXT: Final = 6
N_NEXT: Final = 7
BLOCK: Final = 8
SOURCE: Final = 13
ACTION: Final = 18
FLAGS: Final = 19
OPERANDS: Final = 20
N_READS: Final = 21
N_WRITES: Final = 22
SETS: Final = 23
N_SETS: Final = 24
WIDTH: Final = 25

#: Flags: the result does not wait for the step.
OPTIONAL: Final = 1
#: Some start, count or size of a buffer is a register.
SYMBOLIC: Final = 2
#: Some block has more than one run.
STRIDED: Final = 4

_NO_BLOCK = (-1, 0, 0, 1, 0)


@dataclass(frozen=True, eq=False)
class Table:
    """One rank's steps, lowered; all arrays are read-only.

    Attributes
    ----------
    rank : int
        Whose steps these are.
    rows : ndarray, shape (n, WIDTH), dtype int64
        One row a step, in the order of their numbers; see the module.
    after, successors : ndarray, shape (edges,), dtype int64
        Steps waited for, and who waits, of all steps one after the other.
    operands : ndarray, shape (m, 5), dtype int64
        Blocks that APPLY steps read and write.
    sets : ndarray, shape (s,), dtype int64
        Registers that APPLY steps set.
    buffers : ndarray, shape (b, 2), dtype int64
        Items and unit of every buffer; items ``~k`` stands for register ``k``.
    registers : ndarray, shape (r,), dtype int64
        The bound of every register.
    actions : tuple of Apply or Leaf
        What APPLY, NATIVE and SHARED steps run.
    constants : dict of int to ndarray of int64
        What buffers declared by `Script.constant` hold from the start.
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
        """Return who waits for each step, as lists."""
        following = self.successors.tolist()
        return [
            following[first : first + n] for first, n in self.rows[:, NEXT : N_NEXT + 1].tolist()
        ]


def lower(script: Script, steps: Sequence[Step]) -> Table:
    """Write steps as a table.

    Parameters
    ----------
    script : Script
        The rank's script: its buffers and registers.
    steps : sequence of Step
        All its steps, in the order of their numbers.

    Returns
    -------
    Table
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
    return Table(
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
