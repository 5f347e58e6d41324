"""Pairs of one rank as calls need them: indices ascend, each once."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import without_repeats
from closeranks.errors import UsageError

Ints = NDArray[np.int64]

_WHERE: Final = "Allreduce_sparse"


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

    Raises
    ------
    UsageError
        If an index is outside: the arrays were changed after they were checked.
    """
    steps = indices[1:] > indices[:-1]
    if not steps.all():
        order = np.argsort(indices, kind="stable")
        indices = indices[order]
        values = values.reshape(len(order), width)[order].reshape(-1)
        indices, values = without_repeats(indices, values, op, width)
    if len(indices) and not 0 <= indices[0] <= indices[-1] < length:
        wrong = int(indices[0] if indices[0] < 0 else indices[-1])
        raise UsageError(_WHERE, f"index {wrong} of a vector of length {length}",
                         "change no array of a SparseVector")  # fmt: skip
    return CanonicalPairs(np.ascontiguousarray(indices), values, length, width, op)
