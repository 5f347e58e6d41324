"""From what went wrong below to the errors of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mpi4py import MPI

from closeranks.comms import ulfm
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerLate, PeerLost, Revoked

if TYPE_CHECKING:
    from closeranks.collectives.execute import Execution
    from closeranks.collectives.world import World

#: How long the news of a death may come after a revocation, seconds.
NEWS_S: Final = 0.2


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
    if not ulfm.speaks_of_failure(error):
        return error
    told = execution.bound.world.verdict(execution.operation)
    told.__cause__ = error
    return told


def explained(
    operation: str, comm: MPI.Intracomm, world: World, error: MPI.Exception
) -> PeerLost | Revoked | MPI.Exception:
    """Return what the user is told of an error of the library's own call.

    Local.  If it speaks of dead ranks or of a revoked communicator, all that was
    derived with this one is given up, and so are calls that wait for this rank.

    Parameters
    ----------
    operation : str
        The call.
    comm : MPI.Intracomm
        Where it was made.
    world : World
        Of the first communicator of the family.
    error : MPI.Exception
        What the library raised.

    Returns
    -------
    PeerLost, Revoked or MPI.Exception
        The same error if it speaks of something else.
    """
    if not ulfm.speaks_of_failure(error):
        return error
    ulfm.revoke(comm)
    world.revoke()
    dead = dead_of(comm)
    group, whole = comm.Get_group(), world.comm.Get_group()
    ranks = MPI.Group.Translate_ranks(group, dead, whole)
    group.Free()
    whole.Free()
    told = lost(operation, dead, [world.seats[rank] for rank in ranks])
    told.__cause__ = error
    return told


def lost(operation: str, dead: Sequence[int], seats: Sequence[int]) -> PeerLost | Revoked:
    """Say that ranks died, or, where none did, that others have given up.  Local."""
    return PeerLost(operation, dead, seats=seats) if dead else Revoked(operation)


def dead_of(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Ask which ranks of a communicator have died, now that it is of no use.

    Local.  Waits for the news: a revocation is faster.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator, or a duplicate.

    Returns
    -------
    tuple of int
        Ascending; empty where nobody has died: another rank has given up.
    """
    dead: tuple[int, ...] = ()

    def learnt() -> bool:
        nonlocal dead
        dead = ulfm.failed(comm)
        return bool(dead)

    wait(learnt, progress=ulfm.listen, deadline=Deadline(NEWS_S), polite=True)
    return dead
