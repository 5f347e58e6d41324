"""How ranks of a node wait for each other: counters, and how far they have come.

Importing this imports Numba; nobody does but who compiles what calls it.
"""

from __future__ import annotations

from typing import Any

import numba

from closeranks.collectives.shm.segment_layout import (
    ABORT,
    AHEAD,
    COPY_BUFFERS_EACH,
    FLAGS,
    LAID,
    LINE,
    RANK,
    REDUCED,
    SIZE,
    SPINS,
    START,
    YIELD,
    YIELDS,
)
from closeranks.comms.jit.atomics import call_yield, drain, load_acquire, pause, store_release


@numba.njit(error_model="numpy")
def has_reached(frame: Any, rank: int, which: int, goal: int) -> bool:
    """Wait a little until a counter of ``rank`` has reached ``goal``."""
    counter = frame[FLAGS] + (2 * rank + which) * LINE
    looks = 0
    while load_acquire(counter) < goal:
        looks += 1
        if looks <= frame[SPINS]:
            pause()
            continue
        if load_acquire(frame[ABORT]) != 0 or looks > frame[SPINS] + frame[YIELDS]:
            return False
        call_yield(frame[YIELD])
    return True


@numba.njit(error_model="numpy")
def all_reached(frame: Any, which: int, goal: int) -> bool:
    """Wait a little until a counter of every rank has reached ``goal``."""
    for rank in range(frame[SIZE]):  # noqa: SIM110 - Numba has no all()
        if not has_reached(frame, rank, which, goal):
            return False
    return True


@numba.njit(error_model="numpy")
def may_fill(frame: Any, q: int) -> bool:
    """Wait a little until nobody reads what lies in the copy buffer for segment q."""
    return all_reached(frame, LAID, q - COPY_BUFFERS_EACH + AHEAD)


@numba.njit(error_model="numpy")
def tell_laid(frame: Any, q: int) -> None:
    """Tell that others may read this rank's segment q."""
    drain()
    store_release(frame[FLAGS] + (2 * frame[RANK] + LAID) * LINE, q)


@numba.njit(error_model="numpy")
def tell_reduced(frame: Any, q: int) -> bool:
    """Tell that this rank has read and reduced what it was to.

    Unless the world has been given up: whoever did so has left, and may have
    changed an array that was read where it lies.
    """
    drain()
    if load_acquire(frame[ABORT]) != 0:
        return False
    store_release(frame[FLAGS] + (2 * frame[RANK] + REDUCED) * LINE, q)
    return True


@numba.njit(error_model="numpy")
def over(state: Any, last: int) -> bool:
    """Note that a call has come to its last segment."""
    drain()
    state[START] = last
    return True
