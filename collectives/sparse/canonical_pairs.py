"""Pairs of one rank as calls need them: indices ascend, each once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import combined

Ints = NDArray[np.int64]


class CanonicalPairs(NamedTuple):
    """Pairs whose indices ascend, each once.

    Attributes
    ----------
    indices : ndarray of int64, shape (pairs,)
        Which entries.
    values : ndarray, shape (pairs * width,)
        Their values, one after the other.
    length : int
        Entries of the vector.
    width : int
        Values of an entry.
    op : str
        What combines entries of equal index.
    """

    indices: Ints
    values: NDArray[Any]
    length: int
    width: int
    op: str

    @property
    def row_bytes(self) -> int:
        """Bytes of the values of an index."""
        return self.width * self.values.dtype.itemsize


def canonical(
    indices: Ints, values: NDArray[Any], length: int, width: int, op: str
) -> CanonicalPairs:
    """Sort pairs by their indices; combine those of equal index, in their order.

    Local.

    Parameters
    ----------
    indices : ndarray of int64, shape (nnz,)
        From 0 to below ``length``, in any order.
    values : ndarray, shape (nnz * width,)
        Of each index, one after the other.
    length, width, op
        As the attributes of the result.

    Returns
    -------
    CanonicalPairs
        Of the given arrays, if their indices ascend already.
    """
    steps = indices[1:] > indices[:-1]
    if not steps.all():
        order = np.argsort(indices, kind="stable")
        indices = indices[order]
        values = values.reshape(len(order), width)[order].reshape(-1)
        fresh = np.concatenate([[True], indices[1:] > indices[:-1]])
        if not fresh.all():
            # The k-th entries of all indices are one operand: each index once.
            firsts = np.flatnonzero(fresh)
            turn = np.arange(len(indices)) - np.repeat(firsts, np.diff([*firsts, len(indices)]))
            rows = values.reshape(len(indices), width)
            parts = [
                (indices[turn == k], rows[turn == k].reshape(-1))
                for k in range(int(turn.max()) + 1)
            ]
            indices, values = combined(parts, 0, length, op, width)
    return CanonicalPairs(np.ascontiguousarray(indices), values, length, width, op)
