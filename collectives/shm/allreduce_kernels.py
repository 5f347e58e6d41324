"""All-reduce inside a node, as loops over shared memory without Python.

Every rank has `COPY_BUFFERS_EACH` *copy buffers* in the node's memory, from
which the other ranks read its data, two *result buffers* for reduced chunks,
and two counters:

* ``laid`` is q once the copy buffer holds segment q;
* ``reduced`` is q once the result buffer holds the rank's chunk of segment q.

Segments are numbered over the life of the memory.  Copy and result buffers lie
in rings, and a rank publishes their places with each segment, see
`closeranks.collectives.shm.data_places`.  A rank that has laid segment q no
longer reads any segment up to ``q - AHEAD``.  A copy buffer may therefore be
filled for q as soon as all ranks have laid ``q - COPY_BUFFERS_EACH + AHEAD``.
Copying the next segment overlaps with reading this one.

A kernel never blocks for long.  It spins, yields, and after a while returns
False; the caller calls it again with the same arguments.  The kernel keeps its
place in ``state``, which belongs to the memory; ``frame`` is constant.
Kernels take the addresses of both, so that machine code can call them too.

In the one-shot algorithm, every rank reads the short vector of every rank.
The two-shot algorithm, for longer vectors, is a reduce-scatter and an
all-gather of each segment.  Importing this module imports Numba; only the code
that compiles the kernels imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.collectives.shm.copies import copy, goes_past, lay, put, stream, stream_twice
from closeranks.collectives.shm.counters import (
    all_laid,
    all_reduced,
    may_fill,
    over,
    tell_laid,
    tell_reduced,
)
from closeranks.collectives.shm.data_places import (
    copy_buffer_of,
    name_of,
    place_of,
    publish,
    published,
    result_buffer_of,
    take_copy_buffer,
    take_result_buffer,
)
from closeranks.collectives.shm.segment_layout import (
    ABORT,
    AHEAD,
    BLOCK,
    CACHE,
    COPY_BUFFER,
    DONE,
    FRAME,
    GIVEN,
    ITEM,
    NARROW,
    PAIR,
    PHASE,
    PIECE,
    RANK,
    SCRATCH,
    SIZE,
    STAGED,
    START,
    STATE,
    TAKEN,
    THREE,
    WIDE,
    WIDE_PAIR,
    WIDE_THREE,
)
from closeranks.comms.jit.atomics import array_at, call_pair, call_three, load_acquire

#: Where a rank stands in a segment: it has yet to reduce, or has reduced its chunk of the
#: segment, or that of the whole vector.
OPEN, CHUNK, VECTOR = 0, 1, 2
#: Answers of `_whole` about a vector that might be one segment.
NOT_YET, OVER, IN_SEGMENTS = 0, 1, 2


@numba.njit(error_model="numpy")
def combine(frame: Any, q: int, own: int, at: int, inside: int, out: int, nbytes: int) -> None:
    """Combine the data of all ranks, see `place_of`; ``own`` are this rank's.

    In the order of ranks, whichever rank does it.  Sums and products of
    half-precision numbers are taken in float32 and rounded once.
    """
    rank, size, item = frame[RANK], frame[SIZE], frame[ITEM]
    step = nbytes if size == 2 else BLOCK // item * item
    pair, three, narrow, wide = frame[PAIR], frame[THREE], frame[NARROW], frame[WIDE]
    if size == 2:
        narrow = 0
    elif narrow != 0:
        pair, three = frame[WIDE_PAIR], frame[WIDE_THREE]
    low = 0
    while low < nbytes:
        count = min(step, nbytes - low) // item
        first = own + low if rank == 0 else place_of(frame, 0, q, at + low, inside + low)
        second = own + low if rank == 1 else place_of(frame, 1, q, at + low, inside + low)
        into = out + low if narrow == 0 else wide
        call_three(three, first, second, into, count)
        for other in range(2, size):
            place = own + low
            if other != rank:
                place = place_of(frame, other, q, at + low, inside + low)
            call_pair(pair, place, into, count)
        if narrow != 0:
            call_pair(narrow, into, out + low, count)
        low += step


def allreduce_one_shot(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Reduce a vector: every rank reads the data of all ranks."""
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    copy_buffer = frame[COPY_BUFFER]
    last = state[START] + (nbytes + copy_buffer - 1) // copy_buffer
    while state[DONE] < last:
        while state[STAGED] < min(last, state[DONE] + AHEAD):
            q = state[STAGED] + 1
            if not may_fill(frame, q):
                return False
            at = (q - state[START] - 1) * copy_buffer
            length = min(copy_buffer, nbytes - at)
            publish(frame, q, -take_copy_buffer(frame, state, length), 0)
            copy(copy_buffer_of(frame, frame[RANK], q), source + at, length)
            tell_laid(frame, q)
            state[STAGED] = q
        q = state[DONE] + 1
        if not all_laid(frame, q):
            return False
        at = (q - state[START] - 1) * copy_buffer
        own = copy_buffer_of(frame, frame[RANK], q)
        combine(frame, q, own, 0, 0, target + at, min(copy_buffer, nbytes - at))
        state[DONE] = q
    return over(state, last)


@numba.njit(error_model="numpy")
def _edge(nbytes: int, size: int, rank: int) -> int:
    """Where the chunk of a rank starts in a segment: at a whole line."""
    return nbytes if rank == size else nbytes // 64 * rank // size * 64


@numba.njit(error_model="numpy")
def _lay_chunks(frame: Any, state: Any, q: int, source: int, nbytes: int, given: int) -> None:
    """Let the others read a segment: by the name of its array, or in the copy buffer.

    The copy buffer leaves out this rank's own chunk.
    """
    size, rank = frame[SIZE], frame[RANK]
    if given != 0:
        publish(frame, q, given, 0)
    else:
        publish(frame, q, -take_copy_buffer(frame, state, nbytes), 0)
        low, high = _edge(nbytes, size, rank), _edge(nbytes, size, rank + 1)
        copy_buffer, past = copy_buffer_of(frame, rank, q), goes_past(frame, state, q, nbytes)
        lay(state, copy_buffer, source, low, past)
        lay(state, copy_buffer + high, source + high, nbytes - high, past)
    tell_laid(frame, q)
    state[STAGED] = q


@numba.njit(error_model="numpy")
def _combine_past(
    frame: Any,
    q: int,
    own: int,
    at: int,
    inside: int,
    result: int,
    target: int,
    nbytes: int,
    cold: bool,
) -> None:
    """Combine a chunk in pieces, into the target and the result buffer.

    The result buffer is written past the caches.  The pieces are so small that the
    processor reads the next one while this one is on its way to memory.
    """
    scratch, head = frame[SCRATCH], -target % 64
    piece = PIECE if cold else BLOCK
    low, length = 0, head if head % frame[ITEM] == 0 and head > 0 else piece
    while low < nbytes:
        length = min(length, nbytes - low)
        combine(frame, q, own + low, at + low, inside + low, scratch, length)
        if cold:
            stream_twice(target + low, result + low, scratch, length)
        else:
            stream(result + low, scratch, length)
            copy(target + low, scratch, length)
        low += length
        length = piece


@numba.njit(error_model="numpy")
def _reduce_chunk(
    frame: Any, state: Any, q: int, source: int, target: int, at: int, length: int, cold: bool
) -> None:
    """Reduce this rank's chunk of a segment, for all ranks."""
    size, rank = frame[SIZE], frame[RANK]
    low, high = _edge(length, size, rank), _edge(length, size, rank + 1)
    own, into, count = source + at + low, target + at + low, high - low
    if goes_past(frame, state, q, count):
        result = take_result_buffer(frame, state, q, count, into % 64 if cold else 0)
        _combine_past(frame, q, own, low, at + low, result, into, count, cold)
        tell_reduced(frame, q)
    else:
        result = take_result_buffer(frame, state, q, count, 0)
        combine(frame, q, own, low, at + low, result, count)
        tell_reduced(frame, q)
        put(into, result, count, cold)


@numba.njit(error_model="numpy")
def _are_named(frame: Any, q: int) -> bool:
    """Tell whether all ranks have named what they read and what they write."""
    for rank in range(frame[SIZE]):
        if published(frame, rank, q, GIVEN) == 0 or published(frame, rank, q, TAKEN) == 0:
            return False
    return True


@numba.njit(error_model="numpy")
def _reduce_in_place(frame: Any, q: int, source: int, nbytes: int, cold: bool) -> None:
    """Reduce this rank's chunk of a vector, straight into the results of all.

    It stops once the world is given up: a rank that has left may use its array for
    other data.  The pieces are shorter than a page, since loads wait for stores at
    the same place in their pages.
    """
    size, rank, scratch = frame[SIZE], frame[RANK], frame[SCRATCH]
    low, high = _edge(nbytes, size, rank), _edge(nbytes, size, rank + 1)
    while low < high and load_acquire(frame[ABORT]) == 0:
        length = min(PIECE, high - low)
        combine(frame, q, source + low, 0, low, scratch, length)
        for step in range(0, size - 1, 2):
            one = published(frame, (rank + step) % size, q, TAKEN) + low
            other = published(frame, (rank + step + 1) % size, q, TAKEN) + low
            if cold:
                stream_twice(one, other, scratch, length)
            else:
                copy(one, scratch, length)
                copy(other, scratch, length)
        if size % 2 != 0:
            one = published(frame, (rank + size - 1) % size, q, TAKEN) + low
            put(one, scratch, length, cold)
        low += length
    tell_reduced(frame, q)


@numba.njit(error_model="numpy")
def _whole(frame: Any, state: Any, source: int, target: int, nbytes: int) -> int:
    """Reduce a vector as one segment, if all ranks can reach all arrays.

    Gives whether it is to be called again, is over, or goes in segments.
    """
    given, taken = name_of(frame, source, nbytes), name_of(frame, target, nbytes)
    q = state[START] + 1
    if given == 0 or taken == 0 or state[DONE] >= q or state[PHASE] == CHUNK:
        return IN_SEGMENTS
    if state[STAGED] < q:
        if not may_fill(frame, q):
            return NOT_YET
        publish(frame, q, given, taken)
        tell_laid(frame, q)
        state[STAGED] = q
    if state[PHASE] == OPEN:
        if not all_laid(frame, q):
            return NOT_YET
        if not _are_named(frame, q):
            return IN_SEGMENTS
        _reduce_in_place(frame, q, source, nbytes, source != target and 4 * nbytes >= frame[CACHE])
        state[PHASE] = VECTOR
    if not all_reduced(frame, q):
        return NOT_YET
    state[DONE], state[PHASE] = q, OPEN
    return OVER


def allreduce_two_shot(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Reduce a vector segment by segment, each rank one chunk of each segment.

    For segments 1 and 2 and ranks 0 and 1 (``reduce 2.1`` is chunk 1 of segment
    2)::

        time ------------------------------------------------------------->
        rank 0  |lay 1| reduce 1.0 |lay 2| gather 1 | reduce 2.0 | gather 2
        rank 1  |lay 1| reduce 1.1 |lay 2| gather 1 | reduce 2.1 | gather 2
                A     B            A     C          B            C

    ==== ======== ============================================================
    wait before   until, on every rank
    ==== ======== ============================================================
    A    lay q    ``laid >= q - COPY_BUFFERS_EACH + AHEAD``: no rank reads from
                  the copy buffer any more; afterwards ``laid`` is q here
    B    reduce q ``laid >= q``: the data may be read; afterwards ``reduced`` is
                  q here, and the chunk is in the result buffer
    C    gather q ``reduced >= q``: the result buffers may be read
    ==== ======== ============================================================

    If all ranks can reach all arrays, the vector is one segment: each rank writes
    its chunk into the results of all ranks, see `_whole`.  Every rank waits for
    all chunks, so memory that others have read or written is free at the end.
    """
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    way = _whole(frame, state, source, target, nbytes)
    if way != IN_SEGMENTS:
        return way == OVER and over(state, state[DONE])
    size, rank, copy_buffer = frame[SIZE], frame[RANK], frame[COPY_BUFFER]
    given = name_of(frame, source, nbytes)
    cold = source != target and 2 * nbytes >= frame[CACHE]  # copy buffers want some of it too
    last = state[START] + (nbytes + copy_buffer - 1) // copy_buffer
    while state[DONE] < last:
        q = state[DONE] + 1
        at = (q - state[START] - 1) * copy_buffer
        length = min(copy_buffer, nbytes - at)
        if state[STAGED] < q:
            if not may_fill(frame, q):
                return False
            _lay_chunks(frame, state, q, source + at, length, given)
        if state[PHASE] == OPEN:
            if not all_laid(frame, q):
                return False
            _reduce_chunk(frame, state, q, source, target, at, length, cold)
            state[PHASE] = CHUNK
        if state[STAGED] == q and q < last:
            if not may_fill(frame, q + 1):
                return False
            ahead = at + copy_buffer
            _lay_chunks(
                frame, state, q + 1, source + ahead, min(copy_buffer, nbytes - ahead), given
            )
        if not all_reduced(frame, q):
            return False
        for step in range(1, size):
            other = (rank + step) % size
            first = _edge(length, size, other)
            count = _edge(length, size, other + 1) - first
            put(target + at + first, result_buffer_of(frame, other, q), count, cold)
        state[DONE], state[PHASE] = q, OPEN
    return over(state, last)


def exported(name: str) -> tuple[Callable[..., bool], Any]:
    """Give a kernel by its name, and its signature."""
    kernels = {kernel.__name__: kernel for kernel in (allreduce_one_shot, allreduce_two_shot)}
    return kernels[name], types.boolean(*(types.int64,) * 5)
