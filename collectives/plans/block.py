"""Blocks: the places of data in a buffer, before their address is known.

A block names items of a buffer.  Its start and its count are numbers or
symbols.  A symbol ``~k`` (negative) stands for register ``k`` of the
execution: an int64 that a kernel or the arrival of a message fills while the
plan runs.  V-operations, sparse and compressed messages need no more than
that.

`Chunks` are runs of consecutive chunks of one buffer, given by where each
chunk starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Chunks:
    """Chunk ``j`` of a buffer is the items ``[edge(j), edge(j + 1))``.

    Called with ``j`` it gives that chunk, so it serves wherever a stage asks
    for the block of member ``j``.

    Attributes
    ----------
    buffer : int
        Index of the buffer.
    edge : callable
        Start of chunk ``j``; also defined for the number of chunks.
    largest : int
        Items of the largest chunk.
    """

    buffer: int
    edge: Callable[[int], int]
    largest: int

    def __call__(self, index: int) -> Block:
        """Return chunk ``index``."""
        low = self.edge(index)
        return Block(self.buffer, low, self.edge(index + 1) - low)

    def span(self, low: int, high: int) -> Block:
        """Return the chunks ``low`` to ``high - 1`` as one block."""
        start = self.edge(low)
        return Block(self.buffer, start, self.edge(high) - start)


def cut(block: Block, parts: int) -> Chunks:
    """Cut a contiguous block into ``parts`` chunks; sizes differ by at most 1."""
    start, count = block.start, block.count
    return Chunks(block.buffer, lambda j: start + count * j // parts, -(-count // parts))


def even(buffer: int, count: int, start: int = 0) -> Chunks:
    """Chunks of ``count`` items each, packed from item ``start`` on."""
    return Chunks(buffer, lambda j: start + count * j, count)


def packed(buffer: int, counts: Sequence[int] | NDArray[np.int64]) -> Chunks:
    """Chunks of given counts, packed from item 0 on."""
    counts = np.asarray(counts, dtype=np.int64)
    edges = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=edges[1:])
    # a memoryview gives plain integers, faster than the array and without a list
    return Chunks(buffer, edges.data.__getitem__, int(counts.max(initial=0)))


#: Buffer 0 of every plan is the caller's input, buffer 1 the caller's output.
INPUT, OUTPUT = 0, 1


class Block(NamedTuple):
    """``repeat`` runs of ``count`` items, ``stride`` items apart.

    Attributes
    ----------
    buffer : int
        Index of the buffer: `INPUT`, `OUTPUT` or a scratch buffer.
    start : int
        First item, or ``~k`` for the value of register ``k``.
    count : int
        Items in a run, or ``~k``: the value of register ``k``, which the
        arrival of a message sets when nothing else has.
    repeat : int
        Number of runs, at least 1.
    stride : int
        Items from the start of one run to the next; unused for one run.
    """

    buffer: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    repeat: int = 1
    stride: int = 0

    @property
    def is_static(self) -> bool:
        """Whether both ends are known before the plan runs."""
        return self.start >= 0 and self.count >= 0

    @property
    def items(self) -> int:
        """Number of items of a static block."""
        return self.count * self.repeat

    def __str__(self) -> str:
        """Print as ``buffer[start:+count]``, with ``xrepeat/stride`` where strided."""
        name = ("in", "out")[self.buffer] if self.buffer < 2 else f"work{self.buffer - 2}"
        runs = f" x{self.repeat}/{self.stride}" if self.repeat > 1 else ""
        return f"{name}[{symbol(self.start)}:+{symbol(self.count)}{runs}]"


class Buffer(NamedTuple):
    """One array that a rank's steps work on.

    Attributes
    ----------
    items : int
        Capacity in items, or ``~k``: allocated once register ``k`` is set.
    unit : int
        Bytes of an item; 0 stands for the plan's element.
    """

    items: int
    unit: int = 0


def symbol(value: int) -> str:
    """Print a number or a register."""
    return str(value) if value >= 0 else f"%{~value}"


def bounds(count: int, parts: int) -> list[int]:
    """Cut ``count`` items into ``parts`` runs; sizes differ by at most 1.

    Parameters
    ----------
    count : int
        Items, at least 0; fewer items than parts leave empty parts.
    parts : int
        Number of parts, at least 1.

    Returns
    -------
    list of int
        ``parts + 1`` ends; part ``i`` is ``[ends[i], ends[i + 1])``.
    """
    return [count * i // parts for i in range(parts + 1)]


def split(block: Block, parts: int) -> list[Block]:
    """Cut a contiguous static block into ``parts`` blocks, see `bounds`."""
    buffer, start, count = block.buffer, block.start, block.count
    ends = bounds(count, parts)
    return [Block(buffer, start + ends[i], ends[i + 1] - ends[i]) for i in range(parts)]


def part(block: Block, index: int, parts: int) -> Block:
    """Part ``index`` of `split`, without making the others."""
    low = block.count * index // parts
    high = block.count * (index + 1) // parts
    return Block(block.buffer, block.start + low, high - low)


def runs(starts: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """Fold equal runs at ``starts`` into few ``(start, repeat, stride)``.

    Parameters
    ----------
    starts : sequence of int
        First item of each run, in the order in which they are packed.
    count : int
        Items of every run; neighbours in memory become a stride of ``count``.

    Yields
    ------
    tuple of int
        ``start, repeat, stride`` of one arithmetic progression.
    """
    i, n = 0, len(starts)
    while i < n:
        if i + 1 == n:
            yield starts[i], 1, count
            return
        stride = starts[i + 1] - starts[i]
        j = i + 1
        while j + 1 < n and starts[j + 1] - starts[j] == stride:
            j += 1
        yield starts[i], j - i + 1, stride
        i = j + 1


def strided(buffer: int, starts: Iterable[int], count: int) -> list[Block]:
    """Blocks of ``count`` items at ``starts`` of ``buffer``, folded by `runs`.

    Runs that touch are one longer run, so that a message needs no stride.
    """
    blocks = []
    for start, repeat, stride in runs(list(starts), count):
        if stride == count:
            blocks.append(Block(buffer, start, count * repeat))
        else:
            blocks.append(Block(buffer, start, count, repeat, stride))
    return blocks
