"""Where a rank's data lie: in copy buffers, or in arrays that all can reach.

The copy buffers of a rank follow each other in a ring, and its result buffers
in another one.  Each is as long as its data, so that short ones too come back
to a place only after megabytes.  By then, the place's lines have left the
second-level caches of writer and reader.  A line that is still in both caches
has to be taken from the reader before it is written.  That costs 7 to 9 ns on
a Zen 5 whose two cores share their third-level cache, 3 ns if the line comes
from there.

Arrays of `Communicator.empty` are mapped by all ranks of a node.  If a rank's
data lie in one of them, no copy is needed: with each segment the rank
publishes the *name* of the data beside its counter.  A name of 0 says that the
segment is in the copy buffer.  So each rank decides for itself.  A rank whose
array is read in place must not return before the last reader is done.

Importing this module imports Numba; only the code that compiles the kernels
imports it.
"""

from __future__ import annotations

from typing import Any

import numba

from closeranks.collectives.shm.segment_layout import (
    ARRAYS,
    COPY_BUFFER_AT,
    COPY_BUFFER_RING,
    COPY_BUFFERS,
    COPY_BUFFERS_EACH,
    FLAGS,
    GIVEN,
    INSIDE,
    LAID,
    LINE,
    LONG,
    PAGE,
    RANK,
    REDUCED,
    RESULT_BUFFER_AT,
    RESULT_BUFFER_RING,
    RESULT_BUFFERS,
    SHORT,
    TAKEN,
)
from closeranks.comms.jit.c_calls import set_word, word


@numba.njit(error_model="numpy")
def _next(state: Any, which: int, ring: int, nbytes: int) -> int:
    """Take so many bytes of a ring, and give where they begin in it.

    Long ones begin in the middle of a page, as the rings do.
    """
    at = state[which]
    if nbytes >= LONG:
        at += -at % PAGE
    if at + nbytes > ring:
        at = 0
    state[which] = at + (nbytes + 63) // 64 * 64
    return at


@numba.njit(error_model="numpy")
def take_copy_buffer(frame: Any, state: Any, nbytes: int) -> int:
    """Give where in its ring this rank's next copy buffer begins."""
    return _next(state, COPY_BUFFER_AT, frame[COPY_BUFFER_RING], nbytes)


@numba.njit(error_model="numpy")
def copy_buffer_of(frame: Any, rank: int, q: int) -> int:
    """Give the address of a rank's copy buffer for segment q, which it has published."""
    inside = -word(_names(frame, rank, q) + 8 * GIVEN)
    return frame[COPY_BUFFERS] + rank * frame[COPY_BUFFER_RING] + inside


@numba.njit(error_model="numpy")
def take_result_buffer(frame: Any, state: Any, q: int, nbytes: int, shift: int) -> int:
    """Give the address of this rank's result buffer for segment q, and publish it.

    ``shift``, less than a line, says where in its line it begins.
    """
    at = _next(state, RESULT_BUFFER_AT, frame[RESULT_BUFFER_RING], nbytes + 64) + shift
    set_word(_result_word(frame, frame[RANK], q), at)
    return result_buffer_of(frame, frame[RANK], q)


@numba.njit(error_model="numpy")
def result_buffer_of(frame: Any, rank: int, q: int) -> int:
    """Give the address of a rank's published result buffer for segment q."""
    return (
        frame[RESULT_BUFFERS]
        + rank * frame[RESULT_BUFFER_RING]
        + word(_result_word(frame, rank, q))
    )


@numba.njit(error_model="numpy")
def _result_word(frame: Any, rank: int, q: int) -> int:
    """Give the address of the word that says where in its ring a result buffer is."""
    return frame[FLAGS] + (2 * rank + REDUCED) * LINE + 8 * (1 + q % 2)


@numba.njit(error_model="numpy")
def _names(frame: Any, rank: int, q: int) -> int:
    """Give the address of a segment's words, less `GIVEN` or `TAKEN` of them."""
    return frame[FLAGS] + (2 * rank + LAID) * LINE + 8 * (q % COPY_BUFFERS_EACH)


@numba.njit(error_model="numpy")
def name_of(frame: Any, address: int, nbytes: int) -> int:
    """Name bytes for the other ranks; 0 if these cannot reach them, or copying pays."""
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
    """Name what this rank reads and writes, before it tells that q is laid.

    ``given`` is the name of an array, or minus the place of the copy buffer in its
    ring.
    """
    line = _names(frame, frame[RANK], q)
    set_word(line + 8 * GIVEN, given)
    set_word(line + 8 * TAKEN, taken)


@numba.njit(error_model="numpy")
def published(frame: Any, rank: int, q: int, which: int) -> int:
    """Give the address of the array that a rank has named, 0 if it has not."""
    name = word(_names(frame, rank, q) + 8 * which)
    if name <= 0:
        return 0
    row, inside = (name >> INSIDE) - 1, name & ((1 << INSIDE) - 1)
    return word(frame[ARRAYS] + 16 * row + 8) + inside


@numba.njit(error_model="numpy")
def place_of(frame: Any, rank: int, q: int, at: int, inside: int) -> int:
    """Give a rank's data: ``at`` in its copy buffer, or ``inside`` its array."""
    array = published(frame, rank, q, GIVEN)
    return copy_buffer_of(frame, rank, q) + at if array == 0 else array + inside
