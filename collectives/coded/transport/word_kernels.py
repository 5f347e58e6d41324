"""Atomic operations on words of node memory, compiled.

Importing this module imports Numba; only the code that compiles the kernels
imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
from numba import types

from closeranks.comms.jit import atomics


@numba.njit(error_model="numpy")
def load(address: int) -> int:
    """Read a word; nothing after it moves before it."""
    return atomics.load_acquire(address)


@numba.njit(error_model="numpy")
def store(address: int, value: int) -> int:
    """Write a word; nothing before or after it moves past it.  Gives the old one."""
    return atomics.exchange(address, value)


@numba.njit(error_model="numpy")
def swap_if(address: int, expected: int, value: int) -> int:
    """Write a word if the expected one stands there.  Gives the old one."""
    return atomics.swap_if(address, expected, value)


@numba.njit(error_model="numpy")
def add(address: int, value: int) -> int:
    """Add to a word.  Gives the old one."""
    return atomics.fetch_add(address, value)


@numba.njit(error_model="numpy")
def set_bits(address: int, bits: int) -> int:
    """Set bits of a word.  Gives the old one."""
    return atomics.fetch_or(address, bits)


_KERNELS: Final[dict[str, tuple[Any, int]]] = {
    "load": (load, 1), "store": (store, 2), "swap_if": (swap_if, 3), "add": (add, 2),
    "set_bits": (set_bits, 2),
}  # fmt: skip


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give a kernel by its name, and its signature."""
    kernel, arguments = _KERNELS[name]
    return kernel, types.int64(*[types.int64] * arguments)
