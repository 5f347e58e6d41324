"""The k-th largest key of all ranks, exactly, by counting digits.

Each round counts one digit of the keys that may still be it, and adds the
counts over all ranks: 2048 counts a round, whatever the keys and ranks.  No
key is sorted or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import loop

Ints = NDArray[np.int64]
#: Adds an array over all ranks; for keys of one rank it gives the array back.
Adding = Callable[[Ints], Ints]

#: Bits of a digit.
_DIGIT: Final = 11


class KthLargest(NamedTuple):
    """The k-th largest key.

    Attributes
    ----------
    key : int
        Its value.
    ties : int
        How many of the keys of this value are among the k largest.
    equal : int
        How many keys have this value.
    """

    key: int
    ties: int
    equal: int


def kth_largest(keys: NDArray[Any], k: int, add: Adding) -> KthLargest:
    """Find the k-th largest key.

    Collective, if ``add`` is.

    Parameters
    ----------
    keys : ndarray of int16, int32 or int64, contiguous
        Of this rank; the sign bit is left out.
    k : int
        From 1 to the number of keys of all ranks.
    add : callable
        Adds counts over all ranks.

    Returns
    -------
    KthLargest
        The same on all ranks.
    """
    bits = 8 * keys.dtype.itemsize - 1
    mask, shift, prefix, equal = (1 << bits) - 1, bits, 0, 0
    while shift:
        digits = min(_DIGIT, shift)
        shift -= digits
        counts = np.zeros(1 << digits, np.int64)
        name = f"digit_counts.{keys.dtype.name}"
        loop(name, keys, len(keys), mask, shift, digits, prefix, counts)
        above = np.cumsum(add(counts)[::-1])  # from the largest digit on
        place = int(np.searchsorted(above, k))
        before = int(above[place - 1]) if place else 0
        k, equal = k - before, int(above[place]) - before
        prefix = (prefix << digits) | ((1 << digits) - 1 - place)
    return KthLargest(prefix, k, equal)


def largest(keys: NDArray[Any], least: int, ties: int, count: int) -> Ints:
    """Return where keys above ``least`` stand, and the first ``ties`` equal to it.

    Local.

    Parameters
    ----------
    keys : ndarray of int16, int32 or int64, contiguous
        As for `kth_largest`.
    least, ties : int
        As `KthLargest` says.
    count : int
        How many these are at most.

    Returns
    -------
    ndarray of int64
        Ascending.
    """
    mask = (1 << (8 * keys.dtype.itemsize - 1)) - 1
    found = np.empty(count, np.int64)
    n = loop(f"largest_keys.{keys.dtype.name}", keys, len(keys), mask, least, ties, found)
    return found[:n]
