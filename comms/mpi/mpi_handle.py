"""The handle inside an MPI object: which communicator a Python object stands for."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def point(comm: MPI.Comm, at: MPI.Comm) -> None:
    """Let an object stand for another communicator from now on.

    Local.  Everybody who holds the object, C libraries that are passed it
    included, finds the other one when they look next.

    Parameters
    ----------
    comm : MPI.Comm
        The object; what it stood for is not freed.
    at : MPI.Comm
        Stands for the other one.
    """
    from mpi4py import MPI

    ctypes.memmove(MPI._addressof(comm), MPI._addressof(at), MPI._sizeof(MPI.Comm))


def number(comm: MPI.Comm) -> int:
    """Give what tells a communicator from all others of this process.

    Local.

    Parameters
    ----------
    comm : MPI.Comm
        Any.

    Returns
    -------
    int
        The library's handle, the same for all Python objects that stand for it.
    """
    from mpi4py import MPI

    size = MPI._sizeof(MPI.Comm)
    return int.from_bytes(ctypes.string_at(MPI._addressof(comm), size), "little")
