"""How ranks of a node tell each other how far they are, compiled.

Importing this module imports Numba; only the code that compiles the kernels
imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.comms.jit.atomics import drain, load_acquire, pause, store_release
from closeranks.comms.jit.c_calls import word


@numba.njit(error_model="numpy")
def tell(counters: int, step: int) -> bool:
    """Set counters, once all that was written before can be read.

    ``counters`` is the address of int64 numbers: how many, and their addresses.
    """
    drain()
    for i in range(word(counters)):
        store_release(word(counters + 8 * (i + 1)), step)
    return True


@numba.njit(error_model="numpy")
def has_come(counter: int, step: int, looks: int) -> bool:
    """Wait a little until a counter has reached a step."""
    left = looks
    while load_acquire(counter) < step:
        if left <= 0:
            return False
        left -= 1
        pause()
    return True


def exported(name: str) -> tuple[Callable[..., bool], Any]:
    """Give a kernel by its name, and its signature."""
    if name == "tell":
        return tell, types.boolean(types.int64, types.int64)
    return has_come, types.boolean(types.int64, types.int64, types.int64)
