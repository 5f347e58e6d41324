"""Inputs whose results are exact whatever the order of the reduction.

As in nccl-tests' ``verifiable``: small integers, so that no sum needs more
digits than the type holds.  Element i of a rank's input depends on the rank
and on i modulo a prime, so a block that lands in the wrong place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.errors import UsageError

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
    table[:] = _values(op, rank, element, _exact(dtype))
    return Pattern(table, as_dtype(dtype), op)


def _exact(dtype: str) -> int:
    """Return the largest n such that all of 0..n are exact."""
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
