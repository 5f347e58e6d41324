"""Loops over index-value pairs: coding of indices, merging, combining.

Each function takes arrays, or pointers where `exported` compiled it.  Indices
are int64 and ascending, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Bits of an index's gap in one byte; the highest bit says that another byte follows.
_GAP_BITS = 7
_MORE = 1 << _GAP_BITS
#: Eight indices.
_ALL = 0xFF


def gap_bytes(indices: Any, n: int, low: int) -> int:
    """Count the bytes that `write_gaps` writes."""
    total, last = 0, low - 1
    for i in range(n):
        gap = indices[i] - last - 1
        last = indices[i]
        total += 1
        while gap >= _MORE:
            gap >>= _GAP_BITS
            total += 1
    return total


def write_gaps(indices: Any, n: int, low: int, out: Any) -> int:
    """Write how many indices lie between neighbours, 7 bits a byte (LEB128)."""
    at, last = 0, low - 1
    for i in range(n):
        gap = indices[i] - last - 1
        last = indices[i]
        while gap >= _MORE:
            out[at] = (gap & (_MORE - 1)) | _MORE
            gap >>= _GAP_BITS
            at += 1
        out[at] = gap
        at += 1
    return at


def read_gaps(data: Any, n: int, low: int, out: Any) -> int:
    """Read what `write_gaps` has written; returns the bytes."""
    at, last = 0, low - 1
    for i in range(n):
        byte = int(data[at])
        at += 1
        gap, shift = byte & (_MORE - 1), _GAP_BITS
        while byte >= _MORE:
            byte = int(data[at])
            at += 1
            gap |= (byte & (_MORE - 1)) << shift
            shift += _GAP_BITS
        last += gap + 1
        out[i] = last
    return at


def write_bits(indices: Any, n: int, low: int, out: Any) -> int:
    """Set a bit for each index, the lowest first; ``out`` was zero."""
    for i in range(n):
        place = indices[i] - low
        out[place >> 3] |= 1 << (place & 7)
    return n


def read_bits(data: Any, nbytes: int, low: int, out: Any) -> int:
    """Write the index of each bit that is set; returns how many there are."""
    found = 0
    for at in range(nbytes):
        byte = int(data[at])
        place = low + 8 * at
        if byte == _ALL:  # as most are where the vector is nearly dense
            for bit in range(8):
                out[found + bit] = place + bit
            found += 8
            continue
        while byte:
            if byte & 1:
                out[found] = place
                found += 1
            byte >>= 1
            place += 1
    return found


def merge(left: Any, n_left: int, right: Any, n_right: int, out: Any) -> int:
    """Write the indices that either side has; returns how many there are."""
    i, j, found = 0, 0, 0
    while i < n_left and j < n_right:
        a, b = left[i], right[j]
        if a <= b:
            i += 1
        if b <= a:
            j += 1
        out[found] = min(a, b)
        found += 1
    while i < n_left:
        out[found] = left[i]
        i += 1
        found += 1
    while j < n_right:
        out[found] = right[j]
        j += 1
        found += 1
    return found


def places(merged: Any, indices: Any, n: int, out: Any) -> int:
    """Write where each index stands among those of a merge; all are there."""
    at = 0
    for i in range(n):
        while merged[at] < indices[i]:
            at += 1
        out[i] = at
    return at


def taken_places(taken: Any, span: int, low: int, out: Any) -> int:
    """Write ``low`` and the place of each byte that is not 0; returns how many."""
    found = 0
    for at in range(span):
        if taken[at]:
            out[found] = low + at
            found += 1
    return found


def gather_rows(values: Any, chosen: Any, n: int, width: int) -> int:
    """Move the chosen rows to the front, in place; ``chosen`` ascends."""
    for i in range(n):
        source, to = chosen[i] * width, i * width
        for k in range(width):
            values[to + k] = values[source + k]
    return n


def digit_counts(
    keys: Any, n: int, mask: int, shift: int, digits: int, prefix: int, counts: Any
) -> int:
    """Count the keys of each digit, of those that begin with ``prefix``.

    A key is ``keys[i] & mask``; the digit is the ``digits`` bits from
    ``shift`` on.
    """
    for i in range(n):
        key = keys[i] & mask
        if key >> (shift + digits) == prefix:
            counts[(key >> shift) & ((1 << digits) - 1)] += 1
    return n


def largest_keys(keys: Any, n: int, mask: int, least: int, ties: int, out: Any) -> int:
    """Write where keys above ``least`` stand, and the first ``ties`` equal to it."""
    found = 0
    for i in range(n):
        key = keys[i] & mask
        if key > least or (key == least and ties > 0):
            if key == least:
                ties -= 1
            out[found] = i
            found += 1
    return found


def relays(starts: Any, n: int, ranks: Any, load: Any, turn: int, out: Any) -> int:
    """Choose one rank of each group of ranks: that with the least load so far.

    Group ``i`` lies from ``starts[i]`` to below ``starts[i + 1]``.  Ranks of equal
    load take turns.  Writes where in ``ranks`` the chosen one stands.
    """
    for i in range(n):
        first = starts[i]
        count = starts[i + 1] - first
        best = first + (turn + i) % count
        for step in range(1, count):
            other = first + (turn + i + step) % count
            if load[ranks[other]] < load[ranks[best]]:
                best = other
        load[ranks[best]] += 1
        out[i] = best
    return n


def add(taken: Any, total: Any, place: Any, values: Any, n: int, width: int, low: int) -> int:
    """Add values to the sums of their indices; set ``taken`` of those that are new."""
    for i in range(n):
        at, source = place[i] - low, i * width
        to = at * width
        if taken[at]:
            for k in range(width):
                total[to + k] = total[to + k] + values[source + k]
        else:
            taken[at] = 1
            for k in range(width):
                total[to + k] = values[source + k]
    return n


def multiply(taken: Any, total: Any, place: Any, values: Any, n: int, width: int, low: int) -> int:
    """As `add`, with products."""
    for i in range(n):
        at, source = place[i] - low, i * width
        to = at * width
        if taken[at]:
            for k in range(width):
                total[to + k] = total[to + k] * values[source + k]
        else:
            taken[at] = 1
            for k in range(width):
                total[to + k] = values[source + k]
    return n


def least(taken: Any, total: Any, place: Any, values: Any, n: int, width: int, low: int) -> int:
    """As `add`, with the lesser one; a NaN wins."""
    for i in range(n):
        at, source = place[i] - low, i * width
        to = at * width
        if taken[at]:
            for k in range(width):
                a, b = total[to + k], values[source + k]
                total[to + k] = a if (a < b) | (a != a) else b
        else:
            taken[at] = 1
            for k in range(width):
                total[to + k] = values[source + k]
    return n


def greatest(taken: Any, total: Any, place: Any, values: Any, n: int, width: int, low: int) -> int:
    """As `add`, with the greater one; a NaN wins."""
    for i in range(n):
        at, source = place[i] - low, i * width
        to = at * width
        if taken[at]:
            for k in range(width):
                a, b = total[to + k], values[source + k]
                total[to + k] = a if (a > b) | (a != a) else b
        else:
            taken[at] = 1
            for k in range(width):
                total[to + k] = values[source + k]
    return n


#: Loop -> (function, arguments: i = int64, p = pointer to int64, b = to bytes, v = to values).
LOOPS: dict[str, tuple[Callable[..., int], str]] = {
    "gap_bytes": (gap_bytes, "pii"),
    "write_gaps": (write_gaps, "piib"),
    "read_gaps": (read_gaps, "biip"),
    "write_bits": (write_bits, "piib"),
    "read_bits": (read_bits, "biip"),
    "merge": (merge, "pipip"),
    "places": (places, "ppip"),
    "relays": (relays, "pippip"),
    "taken_places": (taken_places, "biip"),
    "gather_rows": (gather_rows, "vpii"),
    "digit_counts": (digit_counts, "viiiiip"),
    "largest_keys": (largest_keys, "viiiip"),
    "combine.SUM": (add, "bvpviii"),
    "combine.PROD": (multiply, "bvpviii"),
    "combine.MIN": (least, "bvpviii"),
    "combine.MAX": (greatest, "bvpviii"),
}


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give a loop by its name, and its signature.

    Parameters
    ----------
    name : str
        A key of `LOOPS`; where values are among its arguments, with ``.`` and
        their dtype's name.

    Returns
    -------
    loop : callable
        For Numba.
    signature : numba signature
        Pointers and numbers; the result is an int64.
    """
    import numba
    import numpy as np
    from numba import types

    pointer: Any = types.CPointer

    plain = name if name in LOOPS else name.rpartition(".")[0]
    loop, arguments = LOOPS[plain]
    dtype = name[len(plain) + 1 :]
    known = {
        "i": types.int64,
        "p": pointer(types.int64),
        "b": pointer(types.uint8),
    }
    if dtype:
        known["v"] = pointer(numba.from_dtype(np.dtype(dtype)))
    return loop, types.int64(*[known[one] for one in arguments])
