"""What an operation moves, and what must come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.jobs.bench.measuring.exact_inputs import Pattern

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """One operation at one size, as one rank sees it.

    Parameters
    ----------
    rank, ranks : int
        This rank and how many there are; the root is rank 0.
    counts : tuple of int
        Elements of each rank's block; their sum is the size of the
        operation.
    pattern : Pattern
        Inputs and results.
    """

    rank: int
    ranks: int
    counts: tuple[int, ...]
    pattern: Pattern

    @cached_property
    def total(self) -> int:
        """Elements of all blocks together."""
        return sum(self.counts)

    @property
    def mine(self) -> int:
        """Elements of this rank's block."""
        return self.counts[self.rank]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each rank's block begins."""
        return tuple(int(at) for at in np.cumsum((0, *self.counts[:-1])))

    @property
    def at_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == 0

    def given(self, rank: int, start: int, count: int) -> Array:
        """Return part of a rank's input."""
        return self.pattern.given(rank, start, count)

    def reduced(self, start: int, count: int, ranks: int | None = None) -> Array:
        """Return part of the reduction over the first (default: all) ranks."""
        return self.pattern.reduced(self.ranks if ranks is None else ranks, start, count)

    def outgoing(self) -> list[int]:
        """Count what goes to each rank; the counts turn with the sender."""
        return [self.counts[(to - self.rank) % self.ranks] for to in range(self.ranks)]

    def incoming(self) -> list[int]:
        """Count what comes from each rank; see `outgoing`."""
        return [self.counts[(self.rank - source) % self.ranks] for source in range(self.ranks)]

    def exchanged(self) -> Array:
        """Concatenate what every rank sends here, counts as in `incoming`."""
        twice = np.cumsum((0, *self.counts, *self.counts))
        blocks = []
        for source, count in enumerate(self.incoming()):
            first = -source % self.ranks
            start = int(twice[first + self.rank] - twice[first])
            blocks.append(self.given(source, start, count))
        return np.concatenate(blocks)


Split = Callable[[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class Collective:
    """How to call one operation, what it is given and what it must return.

    Parameters
    ----------
    name, method : str
        Name on the command line, and of the communicator's method.
    split : callable
        (elements, ranks) -> elements of each rank's block.
    factor : callable
        ranks -> bus bandwidth over algorithm bandwidth, as in nccl-tests.
    send : callable
        Problem -> this rank's send buffer, or None.
    length : callable
        Problem -> elements of this rank's receive buffer, or None.
    expected : callable
        Problem -> what the receive buffer must hold, or None if undefined.
    arguments : callable
        (Problem, send, receive) -> positional arguments of the method.
    reduces : bool
        Whether the method takes ``op=``.
    in_place : bool
        Whether the buffer of the root is input (a broadcast).
    """

    name: str
    method: str
    split: Split
    factor: Callable[[int], float]
    send: Callable[[Problem], Array | None]
    length: Callable[[Problem], int | None]
    expected: Callable[[Problem], Array | None]
    arguments: Callable[[Problem, Array | None, Array | None], tuple[Any, ...]]
    reduces: bool = False
    in_place: bool = False

    def problem(self, rank: int, nbytes: int, pattern: Pattern, ranks: int) -> Problem:
        """Size the operation: ``nbytes`` rounded up to whole blocks."""
        elements = -(-nbytes // pattern.dtype.itemsize)
        return Problem(rank, ranks, self.split(elements, ranks), pattern)


def whole(elements: int, ranks: int) -> tuple[int, ...]:
    """Give the first rank's block everything: operations without blocks.

    Parameters
    ----------
    elements, ranks : int
        Size of the operation and number of ranks.

    Returns
    -------
    tuple of int
        ``(elements, 0, 0, ...)``.
    """
    return (elements, *(0,) * (ranks - 1))


def equal(elements: int, ranks: int) -> tuple[int, ...]:
    """Cut into equal blocks, rounded up.

    Parameters
    ----------
    elements, ranks : int
        Size of the operation and number of ranks.

    Returns
    -------
    tuple of int
        One count a rank, all the same.
    """
    return (-(-elements // ranks),) * ranks


def uneven(elements: int, ranks: int) -> tuple[int, ...]:
    """Cut into blocks that differ by at most one element, some may be empty.

    Parameters
    ----------
    elements, ranks : int
        Size of the operation and number of ranks.

    Returns
    -------
    tuple of int
        One count a rank; the sum is exactly `elements`.
    """
    at = [elements * i // ranks for i in range(ranks + 1)]
    return tuple(at[i + 1] - at[i] for i in range(ranks))
