"""How ranks of a node wait for each other: two counters a rank, ever growing.

No wait here is long: it gives up after a while, and the kernel returns.
Importing this module imports Numba; only the code that compiles the kernels
imports it.
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
def all_laid(frame: Any, q: int) -> bool:
    """Wait a little until segment q of every rank may be read."""
    return all_reached(frame, LAID, q)


@numba.njit(error_model="numpy")
def all_reduced(frame: Any, q: int) -> bool:
    """Wait a little until the chunks that all ranks have reduced of q may be read."""
    return all_reached(frame, REDUCED, q)


@numba.njit(error_model="numpy")
def may_fill(frame: Any, q: int) -> bool:
    """Wait a little until no rank reads from the copy buffer for segment q."""
    return all_reached(frame, LAID, q - COPY_BUFFERS_EACH + AHEAD)


@numba.njit(error_model="numpy")
def tell_laid(frame: Any, q: int) -> None:
    """Tell that others may read this rank's segment q."""
    drain()
    store_release(frame[FLAGS] + (2 * frame[RANK] + LAID) * LINE, q)


@numba.njit(error_model="numpy")
def tell_reduced(frame: Any, q: int) -> bool:
    """Tell that this rank has read the data of the others, and reduced its chunk.

    Unless the world has been given up: the rank that gave it up has left, and may
    have changed an array that was read in place.
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
