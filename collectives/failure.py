"""From what went wrong below to the errors of the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeranks.comms.wait import Deadline
from closeranks.errors import PeerError, PeerLate, PeerLost, Revoked

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.execute import Execution


def late(execution: Execution, deadline: Deadline) -> PeerLate:
    """Name who is awaited by an execution whose deadline has passed.  Local."""
    return PeerLate(
        execution.operation,
        execution.awaited(),
        waited_s=deadline.waited_s,
        limit_s=deadline.limit_s,
    )


def translated(error: BaseException, execution: Execution) -> BaseException:
    """Return what the user is told of an error met while advancing.

    Local.  Errors of the MPI library that speak of dead ranks or a revoked
    communicator become `PeerLost` and `Revoked`; others stay what they are.
    """
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return error
    kind = error.Get_error_class()
    if kind in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
        lost: PeerError = PeerLost(execution.operation, _dead(execution.bound.world.traffic))
    elif kind == MPI.ERR_REVOKED:
        lost = Revoked(execution.operation)
    else:
        return error
    lost.__cause__ = error
    return lost


def _dead(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Ask the library which ranks of ``comm`` have died, as far as it knows here."""
    from mpi4py import MPI

    try:
        dead = comm.Get_failed()
    except (MPI.Exception, NotImplementedError):
        return ()
    ranks = MPI.Group.Translate_ranks(dead, list(range(dead.size)), comm.Get_group())
    dead.Free()
    return tuple(ranks)
