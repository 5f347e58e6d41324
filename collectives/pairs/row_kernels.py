"""Kernels of plans that move rows: gather rows, and add those of several ranks.

A row is so many bytes, the same for all rows of a plan or its own for each
row.  Rows lie one after the other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import OPS, TYPES, dtype_named, loop
from closeranks.collectives.plans.apply_kernels import kernel, move_runs

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_HALVES: Final = frozenset({"float16", "bfloat16"})


@kernel("row_pick")
def row_pick(rows: Ints, data: Bytes, out: Bytes) -> None:
    """Fill ``out`` with rows of ``data``, all of the same size.

    Parameters
    ----------
    rows : ndarray of int64, shape (n,)
        Which rows.
    data, out : ndarray of uint8
        All rows, and those asked for.
    """
    if len(rows):
        size = len(out) // len(rows)
        wide = 8 if size % 8 == 0 and _is_even(data) and _is_even(out) else 1
        kind = np.dtype(f"u{wide}")
        np.take(
            data.view(kind).reshape(-1, size // wide),
            rows,
            axis=0,
            out=out.view(kind).reshape(len(rows), size // wide),
            mode="clip",  # "raise" would copy
        )


def _is_even(data: Bytes) -> bool:
    return len(data) % 8 == 0 and data.__array_interface__["data"][0] % 8 == 0


@kernel("run_pick")
def run_pick(starts: Ints, counts: Ints, data: Bytes, out: Bytes) -> None:
    """Fill ``out`` with rows of ``data`` of given places and bytes."""
    move_runs(data, starts, counts, out)


@kernel("row_combine")
def row_combine(head: Ints, where: Ints, *arrays: Bytes) -> None:
    """Combine rows of several ranks; a row that nobody has is 0.

    Parameters
    ----------
    head : ndarray of int64
        Number of the op, number of the type, rows of the result; then how many
        rows each rank has.
    where : ndarray of int64
        Row of the result to which each row belongs, one rank after the other.
    *arrays : ndarray of uint8
        The rows of each rank, in the order of operands; then the result.
    """
    *parts, out = arrays
    op, dtype = OPS[head[0]], dtype_named(TYPES[head[1]])
    n_rows, counts = int(head[2]), head[3:].tolist()
    if not len(out):
        return
    values = out.view(dtype)
    width = len(values) // n_rows
    wide = np.dtype(np.float32) if dtype.name in _HALVES else dtype
    total = values if wide == dtype else np.empty(len(values), wide)
    taken, first = np.zeros(n_rows, np.uint8), 0
    for part, count in zip(parts, counts, strict=True):
        last = first + count
        _combine(op, taken, total, where[first:last], part.view(dtype), width)
        first = last
    total.reshape(n_rows, width)[taken == 0] = 0
    if total is not values:
        with np.errstate(all="ignore"):
            values[:] = total


@kernel("run_combine")
def run_combine(head: Ints, where: Ints, types: Ints, counts: Ints, *arrays: Bytes) -> None:
    """Combine rows of several ranks, of which each has its own type and bytes.

    Parameters
    ----------
    head : ndarray of int64
        As for `row_combine`; its second number is not used.
    where : ndarray of int64
        As for `row_combine`.
    types, counts : ndarray of int64
        Number of the type, and bytes, of each row of the result.
    *arrays : ndarray of uint8
        As for `row_combine`.
    """
    *parts, out = arrays
    terms: list[list[Bytes]] = [[] for _ in range(len(counts))]
    first = 0
    for part, count in zip(parts, head[3:].tolist(), strict=True):
        at = 0
        for row in where[first : first + count].tolist():
            terms[row].append(part[at : at + counts[row]])
            at += int(counts[row])
        first += count
    at = 0
    for row, given in enumerate(terms):
        size = int(counts[row])
        numbers = np.array([head[0], types[row], 1, *[1] * len(given)])
        row_combine(numbers, np.zeros(len(given), np.int64), *given, out[at : at + size])
        at += size


def _combine(
    op: str, taken: Bytes, total: NDArray[Any], where: Ints, values: NDArray[Any], width: int
) -> None:
    terms = np.ascontiguousarray(values, total.dtype)
    loop(f"combine.{op}.{total.dtype.name}", taken, total, where, terms, len(where), width, 0)
