"""Runs of consecutive chunks of one buffer, given by where each chunk starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block


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
    """Cut a contiguous block into ``parts`` chunks whose sizes differ by at most 1."""
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
