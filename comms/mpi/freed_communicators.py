"""Communicators of ours that a program frees by another handle of theirs.

``MPI.Intracomm(comm.Dup())``, or a subclass of the program's, is a second
handle, and `Free` of that leaves the first one with the address of memory that
is gone.  MPI deletes the attributes of what it frees, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

if TYPE_CHECKING:
    from mpi4py import MPI


def tell(comm: MPI.Comm, told: Callable[[], object]) -> None:
    """Have a method called when a communicator is about to be freed.

    Local.

    Parameters
    ----------
    comm : MPI.Comm
        Its duplicates tell nobody.
    told : bound method
        Calls no MPI, and raises nothing; its object may go before.
    """
    comm.Set_attr(_key(), WeakMethod(told))


@cache
def _key() -> int:
    from mpi4py import MPI

    return MPI.Comm.Create_keyval(delete_fn=_deleted)


def _deleted(comm: MPI.Comm, key: int, found: Any) -> None:
    del comm, key
    told = found()
    if told is not None:
        told()
