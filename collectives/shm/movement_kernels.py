"""Collectives inside a node besides all-reduce, as loops over shared memory.

Copy buffers, counters and their rules are those of
`closeranks.collectives.shm.allreduce_kernels`.  Importing this module imports
Numba; only the code that compiles the kernels imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.collectives.shm.allreduce_kernels import combine
from closeranks.collectives.shm.copies import goes_past, lay, put
from closeranks.collectives.shm.counters import (
    all_laid,
    all_reduced,
    has_reached,
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
    take_copy_buffer,
)
from closeranks.collectives.shm.segment_layout import (
    AHEAD,
    CACHE,
    COPY_BUFFER,
    DONE,
    FRAME,
    ITEM,
    LAID,
    PAGE,
    PHASE,
    RANK,
    ROOT,
    SIZE,
    STAGED,
    START,
    STATE,
)
from closeranks.comms.jit.atomics import array_at


def barrier(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:  # noqa: ARG001
    """Wait until every rank has come."""
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    q = state[START] + 1
    tell_laid(frame, q)
    if not all_laid(frame, q):
        return False
    state[START] = state[STAGED] = state[DONE] = q
    return True


@numba.njit(error_model="numpy")
def _finish(frame: Any, state: Any, last: int, given: int) -> bool:
    """Tell that this rank has read all, and wait for the readers of its array."""
    if state[PHASE] == 0:
        if not tell_reduced(frame, last):
            return False
        state[PHASE] = 1
    if given != 0 and not all_reduced(frame, last):
        return False
    state[PHASE] = 0
    return over(state, last)


@numba.njit(error_model="numpy")
def _lay(frame: Any, state: Any, q: int, source: int, nbytes: int, given: int) -> None:
    """Let the others read a segment: by the name of its array, or in the copy buffer."""
    if given != 0:
        publish(frame, q, given, 0)
        return
    publish(frame, q, -take_copy_buffer(frame, state, nbytes), 0)
    copy_buffer = copy_buffer_of(frame, frame[RANK], q)
    lay(state, copy_buffer, source, nbytes, goes_past(frame, state, q, nbytes))


def bcast(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Copy the root's bytes to everybody.

    The root waits for the last reader only if its array is read in place.
    """
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    rank, root, copy_buffer = frame[RANK], frame[ROOT], frame[COPY_BUFFER]
    given = name_of(frame, source, nbytes) if rank == root else 0
    cold = nbytes > frame[CACHE]
    last = state[START] + (nbytes + copy_buffer - 1) // copy_buffer
    while state[DONE] < last:
        q = state[DONE] + 1
        at = (q - state[START] - 1) * copy_buffer
        length = min(copy_buffer, nbytes - at)
        if rank == root:
            if not may_fill(frame, q):
                return False
            _lay(frame, state, q, source + at, length, given)
            tell_laid(frame, q)
            if source != target:
                put(target + at, source + at, length, cold)
        else:
            tell_laid(frame, q)
            if not has_reached(frame, root, LAID, q):
                return False
            put(target + at, place_of(frame, root, q, 0, at), length, cold)
        state[DONE] = state[STAGED] = q
    return _finish(frame, state, last, given)


def reduce(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Combine the vectors of all ranks at the root, which reads them all.

    In place, the root's vector is laid out too, since the result overwrites it.
    """
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    rank, root, copy_buffer = frame[RANK], frame[ROOT], frame[COPY_BUFFER]
    given = 0 if rank == root else name_of(frame, source, nbytes)
    last = state[START] + (nbytes + copy_buffer - 1) // copy_buffer
    while state[DONE] < last:
        q = state[DONE] + 1
        at = (q - state[START] - 1) * copy_buffer
        length = min(copy_buffer, nbytes - at)
        lays = source == target if rank == root else given == 0
        if state[STAGED] < q:
            if lays or given != 0:
                if not may_fill(frame, q):
                    return False
                _lay(frame, state, q, source + at, length, given)
            tell_laid(frame, q)
            state[STAGED] = q
        if rank == root:
            if not all_laid(frame, q):
                return False
            own = copy_buffer_of(frame, rank, q) if lays else source + at
            combine(frame, q, own, 0, at, target + at, length)
        state[DONE] = q
    return _finish(frame, state, last, given)


def allgather(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Collect the blocks of all ranks, ``nbytes`` each."""
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    size, rank, copy_buffer = frame[SIZE], frame[RANK], frame[COPY_BUFFER]
    given = name_of(frame, source, nbytes)
    cold = (size + 1) * nbytes > frame[CACHE]
    mine = target + rank * nbytes
    last = state[START] + (nbytes + copy_buffer - 1) // copy_buffer
    while state[DONE] < last:
        while state[STAGED] < min(last, state[DONE] + AHEAD):
            q = state[STAGED] + 1
            if not may_fill(frame, q):
                return False
            at = (q - state[START] - 1) * copy_buffer
            length = min(copy_buffer, nbytes - at)
            _lay(frame, state, q, source + at, length, given)
            tell_laid(frame, q)
            state[STAGED] = q
            if mine != source:  # while the others lay theirs
                put(mine + at, source + at, length, cold)
        q = state[DONE] + 1
        if not all_laid(frame, q):
            return False
        at = (q - state[START] - 1) * copy_buffer
        length = min(copy_buffer, nbytes - at)
        for step in range(1, size):
            other = (rank + step) % size
            put(target + other * nbytes + at, place_of(frame, other, q, 0, at), length, cold)
        state[DONE] = q
    return _finish(frame, state, last, given)


@numba.njit(error_model="numpy")
def _share(frame: Any) -> int:
    """Bytes of a copy buffer that are for one rank: whole pages, if it has as many."""
    part: int = frame[COPY_BUFFER] // frame[SIZE]
    whole = PAGE if part >= PAGE and PAGE % frame[ITEM] == 0 else frame[ITEM]
    return part // whole * whole


@numba.njit(error_model="numpy")
def _stride(frame: Any, length: int) -> int:
    """Bytes from one part of a copy buffer to the next, in whole lines."""
    whole: int = min(_share(frame), (length + 63) // 64 * 64)
    return whole


@numba.njit(error_model="numpy")
def _lay_for_others(
    frame: Any, state: Any, q: int, source: int, nbytes: int, at: int, length: int, given: int
) -> None:
    """Let each other rank read what lies ``at`` bytes into the block for it."""
    size, rank, stride = frame[SIZE], frame[RANK], _stride(frame, length)
    if given != 0:
        publish(frame, q, given, 0)
    else:
        publish(frame, q, -take_copy_buffer(frame, state, size * stride), 0)
        copy_buffer, past = copy_buffer_of(frame, rank, q), goes_past(frame, state, q, length)
        for step in range(1, size):
            other = (rank + step) % size
            lay(state, copy_buffer + other * stride, source + other * nbytes + at, length, past)
    tell_laid(frame, q)
    state[STAGED] = q


def alltoall(frame_at: int, state_at: int, source: int, target: int, nbytes: int) -> bool:
    """Send a block of ``nbytes`` to every rank and receive one from each."""
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    size, rank, part = frame[SIZE], frame[RANK], _share(frame)
    given = 0 if source == target else name_of(frame, source, size * nbytes)
    # Copy buffers want some of the cache too.
    cold = source != target and 2 * size * nbytes >= frame[CACHE]
    last = state[START] + (nbytes + part - 1) // part
    while state[DONE] < last:
        while state[STAGED] < min(last, state[DONE] + AHEAD):
            q = state[STAGED] + 1
            if not may_fill(frame, q):
                return False
            at = (q - state[START] - 1) * part
            length = min(part, nbytes - at)
            _lay_for_others(frame, state, q, source, nbytes, at, length, given)
            if source != target:
                own = rank * nbytes + at
                put(target + own, source + own, length, cold)
        q = state[DONE] + 1
        if not all_laid(frame, q):
            return False
        at = (q - state[START] - 1) * part
        length = min(part, nbytes - at)
        for step in range(1, size):
            other = (rank + step) % size
            place = place_of(frame, other, q, rank * _stride(frame, length), rank * nbytes + at)
            put(target + other * nbytes + at, place, length, cold)
        state[DONE] = q
    return _finish(frame, state, last, given)


def reduce_scatter_block(
    frame_at: int, state_at: int, source: int, target: int, nbytes: int
) -> bool:
    """Combine blocks of ``nbytes``; each rank gets the combination of its own."""
    frame, state = array_at(frame_at, FRAME), array_at(state_at, STATE)
    size, rank, part = frame[SIZE], frame[RANK], _share(frame)
    given = name_of(frame, source, size * nbytes)
    last = state[START] + (nbytes + part - 1) // part
    while state[DONE] < last:
        while state[STAGED] < min(last, state[DONE] + AHEAD):
            q = state[STAGED] + 1
            if not may_fill(frame, q):
                return False
            at = (q - state[START] - 1) * part
            _lay_for_others(frame, state, q, source, nbytes, at, min(part, nbytes - at), given)
        q = state[DONE] + 1
        if not all_laid(frame, q):
            return False
        at = (q - state[START] - 1) * part
        length = min(part, nbytes - at)
        in_copy_buffer, inside = rank * _stride(frame, length), rank * nbytes + at
        combine(frame, q, source + inside, in_copy_buffer, inside, target + at, length)
        state[DONE] = q
    return _finish(frame, state, last, given)


def exported(name: str) -> tuple[Callable[..., bool], Any]:
    """Give a kernel by its name, and its signature."""
    kernels = (barrier, bcast, reduce, allgather, alltoall, reduce_scatter_block)
    found = {kernel.__name__: kernel for kernel in kernels}
    return found[name], types.boolean(*(types.int64,) * 5)
