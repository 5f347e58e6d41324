"""Own reductions of the fuzzer, each exact and associative on every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _xor(a: Any, b: Any, _: MPI.Datatype) -> None:
    source, target = np.frombuffer(a, "u1"), np.frombuffer(b, "u1")
    target ^= source


def _left(a: Any, b: Any, _: MPI.Datatype) -> None:
    b[:] = a


def _right(a: Any, b: Any, _: MPI.Datatype) -> None:
    """Leave the right operand."""


def _add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """(1 + a) (1 + b) - 1, in the element's own type."""
    dtype = datatype.typechar
    source, target = np.frombuffer(a, dtype), np.frombuffer(b, dtype)
    target += source + source * target


def _affine(a: Any, b: Any, _: MPI.Datatype) -> None:
    """Compose maps x -> m x + c modulo 2^32, m in the low half and c in the high one."""
    first, second = np.frombuffer(a, "u8"), np.frombuffer(b, "u8")
    m1, c1, m2, c2 = first & _MASK, first >> _HALF, second & _MASK, second >> _HALF
    second[:] = (m1 * m2 & _MASK) | ((c1 * m2 + c2 & _MASK) << _HALF)


FUNCTIONS: dict[str, tuple[Callable[..., None], bool]] = {
    "XOR": (_xor, True),
    "LEFT": (_left, False),
    "RIGHT": (_right, False),
    "ADD": (_add, True),
    "AFFINE": (_affine, False),
}


def make() -> dict[str, MPI.Op]:
    """Make all own ops."""
    return {name: MPI.Op.Create(f, commute=c) for name, (f, c) in FUNCTIONS.items()}
