"""Each collective's input, the bytes that it moves, and its right result.

As in nccl-tests' ``verifiable``, inputs are small integers, so that no sum
needs more digits than the type holds: results are exact in any order.  Element
i of a rank's input depends on the rank and on i modulo a prime, so a block
that lands in the wrong place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology


Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]

PERIOD = 251

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
DTYPES = (*_INTEGERS, *_FLOATS, *_COMPLEX)

_EXACT = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24, "complex64": 1 << 24}
"""Largest n such that 0..n are all exact; other floats hold far more."""

_REDUCE: dict[str, Callable[[Integers], Integers]] = {
    "sum": lambda x: x.sum(axis=0),
    "prod": lambda x: x.prod(axis=0),
    "min": lambda x: x.min(axis=0),
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.sum(axis=0) // len(x),
    "band": lambda x: np.bitwise_and.reduce(x, axis=0),
    "bor": lambda x: np.bitwise_or.reduce(x, axis=0),
    "bxor": lambda x: np.bitwise_xor.reduce(x, axis=0),
    "land": lambda x: np.logical_and.reduce(x, axis=0).astype(np.int64),
    "lor": lambda x: np.logical_or.reduce(x, axis=0).astype(np.int64),
    "lxor": lambda x: x.astype(bool).sum(axis=0) % 2,
}
OPS = tuple(_REDUCE)


def as_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy data type of a name in `DTYPES`.

    Parameters
    ----------
    name : str
        For example ``"float32"`` or ``"bfloat16"``.

    Returns
    -------
    dtype
        The type; bfloat16 is ml_dtypes'.

    Raises
    ------
    UsageError
        If the name is not in `DTYPES`.
    """
    if name not in DTYPES:
        raise UsageError("bench --dtype", f"unknown type {name!r}", f"choose {', '.join(DTYPES)}")
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)


def check_op(op: str, dtype: str) -> None:
    """Refuse a reduction that does not exist for a type.

    Parameters
    ----------
    op : str
        Name in `OPS`.
    dtype : str
        Name in `DTYPES`.

    Raises
    ------
    UsageError
        If the name is unknown or the type has no such reduction.
    """
    if op not in OPS:
        raise UsageError("bench --op", f"unknown operation {op!r}", f"choose {', '.join(OPS)}")
    allowed: tuple[str, ...] = DTYPES
    if op in {"min", "max"}:
        allowed = _INTEGERS + _FLOATS
    elif op == "mean":
        allowed = _FLOATS + _COMPLEX
    elif op not in {"sum", "prod"}:
        allowed = _INTEGERS
    if dtype not in allowed:
        raise UsageError(
            "bench --op", f"{op} of {dtype} does not exist", f"choose {', '.join(allowed)}"
        )


@dataclass(frozen=True, eq=False)
class Pattern:
    """Inputs and results of all ranks, periodic in the element.

    Parameters
    ----------
    table : ndarray, shape (ranks, PERIOD), dtype int64
        Element i of rank r is ``table[r, i % PERIOD]``.
    dtype : dtype
        Type of the elements.
    op : str
        Reduction, a name in `OPS`.
    """

    table: Integers
    dtype: np.dtype[Any]
    op: str

    def given(self, rank: int, start: int, count: int) -> Array:
        """Return ``count`` elements of a rank's input from ``start`` on."""
        return self._repeat(self.table[rank], start, count)

    def reduced(self, ranks: int, start: int, count: int) -> Array:
        """Return the reduction over the first ``ranks`` ranks (at least 1)."""
        return self._repeat(_REDUCE[self.op](self.table[:ranks]), start, count)

    def _repeat(self, row: Integers, start: int, count: int) -> Array:
        """Lay a row out periodically, beginning at element ``start``."""
        return np.resize(np.roll(row, -(start % PERIOD)).astype(self.dtype), count)


def pattern(ranks: int, dtype: str, op: str) -> Pattern:
    """Choose inputs that `op` reduces exactly over any subset of the ranks.

    Parameters
    ----------
    ranks : int
        Number of ranks, at least 1.
    dtype, op : str
        Names in `DTYPES` and `OPS` that `check_op` accepts.

    Returns
    -------
    Pattern
        The same on every rank.
    """
    rank = np.arange(ranks, dtype=np.int64)[:, None]
    element = np.arange(PERIOD, dtype=np.int64)[None, :]
    table = np.empty((ranks, PERIOD), np.int64)
    table[:] = _values(op, rank, element, largest_exact(dtype))
    return Pattern(table, as_dtype(dtype), op)


def largest_exact(dtype: str) -> int:
    """Return the largest n such that all of 0..n are exact in a type.

    Parameters
    ----------
    dtype : str
        A name in `DTYPES`.

    Returns
    -------
    int
        The number.
    """
    if dtype in _INTEGERS:
        return int(np.iinfo(dtype).max)
    return _EXACT.get(dtype, 1 << 53)


def _values(op: str, rank: Integers, element: Integers, exact: int) -> Integers:
    """Choose the table of an operation; comments say why it is exact."""
    ranks = len(rank)
    mixed: Integers = ((rank + 1) * 40503 + element * 2654435761 + rank * element * 97) >> 4
    special = (element % ranks) == rank
    if op == "sum":  # ranks * most <= exact, and with more ranks than that some give 0
        most = max(1, min(PERIOD - 1, exact // ranks))
        return np.where(rank < exact, mixed % (most + 1), 0)
    if op == "mean":  # pairs of ranks give b + 1 and b - 1: the sum is ranks * b
        sign: Integers = np.where(rank % 2 == 0, 1, -1) * (rank < ranks - ranks % 2)
        value: Integers = 1 + element % max(1, min(100, exact // ranks - 1)) + sign
        return value
    if op == "prod":  # three ranks at most give 2
        return np.where((element + rank) % max(ranks, 3) < 3, 2, 1)
    if op in {"band", "land"}:  # one rank clears one bit of odd elements
        bit = 127 if op == "land" else 1 << (element % 7)
        return np.where(special & (element % 2 == 1), 127 & ~bit, 127)
    if op in {"bor", "lor"}:
        return np.where(special & (element % 2 == 1), 1 << (element % 7), 0)
    return mixed % (min(PERIOD - 1, exact) + 1)


@dataclass(frozen=True)
class MeasuredCall:
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
    send: Callable[[MeasuredCall], Array | None]
    length: Callable[[MeasuredCall], int | None]
    expected: Callable[[MeasuredCall], Array | None]
    arguments: Callable[[MeasuredCall, Array | None, Array | None], tuple[Any, ...]]
    reduces: bool = False
    in_place: bool = False

    def problem(self, rank: int, nbytes: int, pattern: Pattern, ranks: int) -> MeasuredCall:
        """Size the operation: ``nbytes`` rounded up to whole blocks."""
        elements = -(-nbytes // pattern.dtype.itemsize)
        return MeasuredCall(rank, ranks, self.split(elements, ranks), pattern)


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


def counts(collective: Collective, problem: MeasuredCall) -> dict[str, Any]:
    """Say the size of a problem as `closeranks.collectives.plans.plan_type` takes it.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : MeasuredCall
        Its size.

    Returns
    -------
    dict
        ``count`` or ``counts``, in elements.
    """
    if collective.split is whole:
        return {"count": problem.total}
    if collective.split is equal:
        return {"count": problem.mine}
    if collective.name != "alltoallv":
        return {"counts": problem.counts}
    ranks, row = problem.ranks, problem.counts
    turned = [[row[(to - source) % ranks] for to in range(ranks)] for source in range(ranks)]
    return {"counts": turned}


def call_bytes(collective: Collective, problem: MeasuredCall) -> int:
    """Say the size of a problem as ``comm.explain`` takes it.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : MeasuredCall
        Its size.

    Returns
    -------
    int
        Bytes of the vector, or of one rank's (mean) block.
    """
    elements = problem.total if collective.split is whole else problem.total // problem.ranks
    return elements * problem.pattern.dtype.itemsize


def planned_bytes(
    collective: Collective, problem: MeasuredCall, topology: Topology, algorithm: str
) -> int | None:
    """Count what leaves the busiest node in one call, by the plan; local.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : MeasuredCall
        Its size.
    topology : Topology
        Where the ranks sit.
    algorithm : str
        A planned algorithm, or "native".

    Returns
    -------
    int or None
        Payload bytes; None for "native", and where all ranks share a node.
    """
    if algorithm == "native" or "node" not in topology.levels:
        return None
    from closeranks.collectives.analysis.cost_model import cost
    from closeranks.collectives.selection.planner import plan

    described = plan(
        collective.name,
        topology,
        algorithm=algorithm,
        dtype=problem.pattern.dtype.name,
        op=problem.pattern.op if collective.reduces else "sum",
        **counts(collective, problem),
    )
    return cost(described).group_bytes_per_level["node"]


def known_algorithms(name: str) -> tuple[str, ...]:
    """List what ``algorithm=`` takes for an operation.

    Parameters
    ----------
    name : str
        A collective.

    Returns
    -------
    tuple of str
        "auto" and "native" among them.
    """
    from closeranks.collectives.builders.catalogue import algorithms

    return ("auto", "native", *algorithms(name))
