"""Addresses of the C functions that compiled code calls."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import NamedTuple

from mpi4py import MPI


class Pointers(NamedTuple):
    """Addresses of functions of the MPI library and the C library.

    Attributes
    ----------
    isend, irecv, testsome, clock : int
        ``MPI_Isend``, ``MPI_Irecv``, ``MPI_Testsome``, ``MPI_Wtime``.
    inquire, release : int
        ``MPI_Request_get_status``, ``MPI_Test``.
    memmove, relax, sleep : int
        ``memmove``, ``sched_yield`` and ``usleep``.
    """

    isend: int
    irecv: int
    testsome: int
    clock: int
    inquire: int
    release: int
    memmove: int
    relax: int
    sleep: int


@cache
def pointers() -> Pointers:
    """Return the addresses in the libraries that this process has loaded.  Local."""
    library, system = ctypes.CDLL(MPI.__file__), ctypes.CDLL(None)
    return Pointers(
        *(address(getattr(library, name)) for name in _MPI),
        *(address(getattr(system, name)) for name in ("memmove", "sched_yield", "usleep")),
    )


def address(function: object) -> int:
    """Return the address of a function that ctypes knows.  Local."""
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found is not None
    return found


_MPI = (
    "MPI_Isend", "MPI_Irecv", "MPI_Testsome", "MPI_Wtime", "MPI_Request_get_status", "MPI_Test",
)  # fmt: skip


@cache
def error_place() -> tuple[int, int]:
    """Return the size of an MPI_Status and the place of its MPI_ERROR, in ints.

    Local.  Found by writing one: the libraries lay the structure out differently.
    """
    mark, status = 0x5A5A5A, MPI.Status()
    status.Set_error(mark)
    size = MPI._sizeof(MPI.Status) // ctypes.sizeof(ctypes.c_int)
    numbers = (ctypes.c_int * size).from_address(MPI._addressof(status))
    return size, list(numbers).index(mark)


def is_wide() -> bool:
    """Whether this library's handles are pointers, not ints.  Local."""
    return MPI._sizeof(MPI.Request) == ctypes.sizeof(ctypes.c_void_p)
