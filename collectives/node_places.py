"""Where the data of a node's ranks lie: on desks, or in arrays all can reach.

Arrays of `Communicator.empty` are mapped by all ranks of a node.  A rank whose
data lie in one need not lay them out: with each segment it publishes their
*name* beside its counter, or 0 where the others find the segment on its desk.
So each rank decides for itself.  Who is read in place must not return before
the last reader has done.

Importing this imports Numba; nobody does but who compiles what calls it.
"""

from __future__ import annotations

from typing import Any

import numba

from closeranks.collectives.node_words import (
    ARRAYS,
    DESK,
    DESKS,
    DESKS_EACH,
    FLAGS,
    GIVEN,
    INSIDE,
    LAID,
    LINE,
    RANK,
    REDUCED,
    SHORT,
    TAKEN,
    TRAY,
    TRAYS,
)
from closeranks.comms.calls import set_word, word


@numba.njit(error_model="numpy")
def desk_of(frame: Any, rank: int, q: int) -> int:
    """Give the address of a rank's desk for segment q."""
    return frame[DESKS] + (DESKS_EACH * rank + q % DESKS_EACH) * frame[DESK]


@numba.njit(error_model="numpy")
def tray_of(frame: Any, rank: int, q: int) -> int:
    """Give the address of a rank's tray for segment q."""
    return frame[TRAYS] + (2 * rank + q % 2) * frame[TRAY]


@numba.njit(error_model="numpy")
def shift_of(frame: Any, rank: int, q: int) -> int:
    """Give the address of the bytes by which what lies on a tray is shifted."""
    return frame[FLAGS] + (2 * rank + REDUCED) * LINE + 8 * (1 + q % 2)


@numba.njit(error_model="numpy")
def name_of(frame: Any, address: int, nbytes: int) -> int:
    """Name bytes for the other ranks; 0 if they cannot reach them, or better not."""
    if nbytes <= SHORT:
        return 0
    table = frame[ARRAYS]
    for row in range(word(table)):
        first = word(table + 16 * row + 8)
        if first <= address and address + nbytes <= word(table + 16 * row + 16):
            return ((row + 1) << INSIDE) + address - first
    return 0


@numba.njit(error_model="numpy")
def publish(frame: Any, q: int, given: int, taken: int) -> None:
    """Name what this rank reads and writes, before it tells that q is laid."""
    line = frame[FLAGS] + (2 * frame[RANK] + LAID) * LINE + 8 * (q % DESKS_EACH)
    set_word(line + 8 * GIVEN, given)
    set_word(line + 8 * TAKEN, taken)


@numba.njit(error_model="numpy")
def published(frame: Any, rank: int, q: int, which: int) -> int:
    """Give the address of what a rank has named, 0 if it has not."""
    name = word(frame[FLAGS] + (2 * rank + LAID) * LINE + 8 * (q % DESKS_EACH + which))
    if name == 0:
        return 0
    row, inside = (name >> INSIDE) - 1, name & ((1 << INSIDE) - 1)
    return word(frame[ARRAYS] + 16 * row + 8) + inside


@numba.njit(error_model="numpy")
def place_of(frame: Any, rank: int, q: int, at: int, inside: int) -> int:
    """Give the address of a rank's data: ``at`` on its desk, or ``inside`` its array."""
    array = published(frame, rank, q, GIVEN)
    return desk_of(frame, rank, q) + at if array == 0 else array + inside
