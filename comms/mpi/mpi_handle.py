"""The handle inside a Python MPI object, and ranks translated between groups.

``MPI.COMM_WORLD = closeranks.init()`` brings programs that name it in many
places to our communicator.  This package therefore keeps the library's own
communicators under other names.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

from mpi4py import MPI

if TYPE_CHECKING:
    from mpi4py import MPI


WORLD: Final[MPI.Intracomm] = MPI.COMM_WORLD
SELF: Final[MPI.Intracomm] = MPI.COMM_SELF


def point(comm: MPI.Comm, at: MPI.Comm) -> None:
    """Let an object stand for another communicator from now on.

    Local.  All holders of the object see the other one from then on, also C
    libraries that it is passed to.

    Parameters
    ----------
    comm : MPI.Comm
        The object; its previous communicator is not freed.
    at : MPI.Comm
        Stands for the other one.
    """
    from mpi4py import MPI

    ctypes.memmove(MPI._addressof(comm), MPI._addressof(at), MPI._sizeof(MPI.Comm))


def number(comm: MPI.Comm) -> int:
    """Give a number that is unique among communicators of this process.

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


def ranks_in(comm: MPI.Intracomm, other: MPI.Intracomm) -> list[int]:
    """Give the ranks that a communicator's members have in another one.

    Local.

    Parameters
    ----------
    comm, other : MPI.Intracomm
        Revoked or not.

    Returns
    -------
    list of int
        Rank in ``comm`` -> rank in ``other``; `MPI.UNDEFINED` where there is none.
    """
    group, others = comm.Get_group(), other.Get_group()
    ranks = group.Translate_ranks(None, others)
    group.Free()
    others.Free()
    return list(ranks)
