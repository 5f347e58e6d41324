"""Communicators that are freed later, or by the program.

A revoked communicator is not freed: MPI would reuse its context id, and
messages of dead ranks could arrive in the new one (``docs/limits/freed.py``).

If processes were started later, MPI_Finalize must not find such a
communicator.  Open MPI 5.0.11 exchanges a last message there with every
process of a communicator that joins several starts, and may not wait for the
answer (`ompi_dpm_dyn_finalize`).  A later process then answers processes that
have ended, over broken connections, and waits for a lock that it holds itself.

A program may also free one of our communicators by another handle.
``MPI.Intracomm(comm.Dup())`` is a second handle, and so is an object of a
program's subclass.  Its `Free` leaves the first handle with a dangling
address.  MPI deletes the attributes of a communicator that it frees; the
callback of such an attribute tells us.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod

from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_handle import number, point

if TYPE_CHECKING:
    from mpi4py import MPI


_deferred: Final[dict[int, MPI.Comm]] = {}


class _End:
    """How this process ends."""

    frees = False


def free_at_end() -> None:
    """Free communicators that are deferred from now on before MPI_Finalize.

    Local.  For a process that meets processes of another start.  Communicators
    that were deferred before join it with none of them.
    """
    _End.frees = True


def defer(comm: MPI.Comm) -> None:
    """Keep a communicator until the end.

    Local, harmless twice.

    Parameters
    ----------
    comm : MPI.Comm
        Freed by no other call.  The object may stand for another one afterwards.
    """
    from mpi4py import MPI

    if _End.frees and comm != MPI.COMM_NULL:
        _deferred.setdefault(number(comm), MPI.Comm(comm))


def defer_and_clear(comm: MPI.Comm) -> None:
    """Defer a communicator, and let the object stand for none.  Local."""
    from mpi4py import MPI

    defer(comm)
    point(comm, MPI.COMM_NULL)


def free_or_defer(comm: MPI.Comm, *, disconnects: bool = False) -> None:
    """Free a communicator; defer that if ranks have died or it was revoked.

    Local with a library that survives deaths, else collective.

    Parameters
    ----------
    comm : MPI.Comm
        MPI.COMM_NULL afterwards.
    disconnects : bool
        Whether to wait first for pending communication (`MPI_Comm_disconnect`).
    """
    from mpi4py import MPI

    is_there = ulfm.is_on() and comm != MPI.COMM_NULL
    if is_there and (ulfm.is_revoked(comm) or ulfm.failed(comm)):
        defer_and_clear(comm)
    elif disconnects:
        MPI.Comm.Disconnect(comm)
    else:
        MPI.Comm.Free(comm)


def _free() -> None:
    """Free them all, a local call in Open MPI; no communicator is made any more."""
    from mpi4py import MPI

    while _deferred and not MPI.Is_finalized():
        _, comm = _deferred.popitem()
        comm.Free()


before_finalize(_free)


def notify_on_free(comm: MPI.Comm, told: Callable[[], object]) -> None:
    """Have a method called when a communicator is about to be freed.

    Local.

    Parameters
    ----------
    comm : MPI.Comm
        Its duplicates call nothing.
    told : bound method
        Calls no MPI, and raises nothing; its object may be deleted before.
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
