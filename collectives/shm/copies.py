"""How the kernels of a node copy: through the caches, or past them.

Bytes that were written past the caches have to be drained before other ranks
are told of them.  Importing this module imports Numba; only the code that
compiles the kernels imports it.
"""

from __future__ import annotations

from typing import Any

import numba

from closeranks.collectives.shm.segment_layout import (
    BEFORE,
    BEYOND,
    FETCHED,
    FIRST,
    LEAST,
    LINES,
    LONG,
    OFTEN,
    PAST,
    SELDOM,
    STREAM,
    THROUGH,
    TIMED,
    TIMES,
    WINDOW,
)
from closeranks.comms.jit.atomics import (
    copy_bytes,
    copy_lines,
    drain,
    stream_lines,
    stream_lines_twice,
    ticks,
)


@numba.njit(error_model="numpy")
def copy(target: int, source: int, nbytes: int) -> None:
    """Copy bytes that will soon be read again."""
    if nbytes < LONG:
        copy_bytes(target, source, nbytes)
        return
    head = -target % 64
    copy_bytes(target, source, head)
    pairs = (nbytes - head) // 128
    copy_lines(target + head, source + head, pairs)
    done = head + 128 * pairs
    copy_bytes(target + done, source + done, nbytes - done)


@numba.njit(error_model="numpy")
def stream(target: int, source: int, nbytes: int) -> None:
    """Copy bytes past the caches."""
    head = min(-target % 64, nbytes)
    copy_bytes(target, source, head)
    whole = (nbytes - head) // 64 * 64
    stream_lines(target + head, source + head, whole // 64)
    copy_bytes(target + head + whole, source + head + whole, nbytes - head - whole)


@numba.njit(error_model="numpy")
def stream_twice(target: int, other: int, source: int, nbytes: int) -> None:
    """Copy bytes past the caches to two places, reading them once.

    The places lie alike in their lines, or it takes two copies.
    """
    head = -target % 64
    if (target - other) % 64 != 0 or nbytes < head:
        stream(target, source, nbytes)
        stream(other, source, nbytes)
        return
    copy_bytes(target, source, head)
    copy_bytes(other, source, head)
    whole = (nbytes - head) // 64 * 64
    stream_lines_twice(target + head, other + head, source + head, whole // 64)
    done = head + whole
    copy_bytes(target + done, source + done, nbytes - done)
    copy_bytes(other + done, source + done, nbytes - done)


@numba.njit(error_model="numpy")
def put(target: int, source: int, nbytes: int, cold: bool) -> None:
    """Copy bytes to the caller's memory; past the caches if they have no room for it."""
    if cold and nbytes >= LONG:
        stream(target, source, nbytes)
    else:
        copy(target, source, nbytes)


@numba.njit(error_model="numpy")
def goes_past(frame: Any, state: Any, q: int, nbytes: int) -> bool:
    """Say whether so much of segment q goes past the caches; trials apart."""
    if nbytes < frame[STREAM]:
        return False
    tries: bool = q % (OFTEN if q < FIRST else SELDOM) == 0
    return tries != (state[PAST] != 0)


@numba.njit(error_model="numpy")
def lay(state: Any, place: int, source: int, nbytes: int, past: bool) -> None:
    """Copy bytes to a copy buffer or a result buffer; learn what it costs."""
    began = 0 if nbytes < TIMED else ticks()
    if past:
        stream(place, source, nbytes)
        drain()  # part of the cost
    else:
        copy(place, source, nbytes)
    if began != 0:
        _learn(state, BEYOND if past else THROUGH, (ticks() - began) * LINES * 64 // nbytes)


@numba.njit(error_model="numpy")
def _learn(state: Any, way: int, cost: int) -> None:
    """Note what laying out cost, and prefer what costs less.

    Where cores share a cache, lines that the other core has read are cheap to
    write again.  Where they do not share one, the lines are fetched back first,
    and stores past the caches win.  They have to win clearly, and only where lines
    are fetched back: the next reader finds the lines farther away, and a few lines
    past the caches always look cheap to the rank that writes them.  The answer may
    change while a job runs.  The least time counts: disturbances only add to it,
    and lines that other work has driven out of the caches need no fetching back.
    """
    times = state[way + TIMES]
    if times % WINDOW == 0:
        state[way + BEFORE] = cost if times == 0 else state[way + LEAST]
        state[way + LEAST] = cost
    state[way + LEAST] = min(state[way + LEAST], cost)
    state[way + TIMES] = times + 1
    through, beyond = _least(state, THROUGH), _least(state, BEYOND)
    fetched = through > FETCHED * LINES
    if fetched and 0 < 2 * beyond < through:
        state[PAST] = 1
    elif not fetched or 3 * beyond > 2 * through:
        state[PAST] = 0


@numba.njit(error_model="numpy")
def _least(state: Any, way: int) -> int:
    """Give the least that laying out has cost lately; 0 as long as it is unknown."""
    least: int = min(state[way + LEAST], state[way + BEFORE])
    return least
