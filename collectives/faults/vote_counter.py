"""Where votes are counted without the library's help: it tells nobody of a death."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.error_translation import NEWS_S
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.faults.attempts import AGAIN, AGREED
from closeranks.comms.wait import Deadline

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World

#: How long the votes of others may come after the news that one of them has failed, seconds.
_GRACE_S: Final = 1.0


class Urn:
    """The votes of a world's members.

    Collective to make.

    Parameters
    ----------
    world : World
        Owns where they are counted, which no other call may meet.
    """

    def __init__(self, world: World) -> None:
        self._world, self._comm = world, world.own(world.comm.Dup())
        #: Kept, for a vote that has not come to an end may still be written.
        self._unfinished: list[tuple[MPI.Request, object]] = []

    def count(self, vote: int, waits: Callable[..., bool]) -> int:
        """Vote; nobody is waited for long.

        Collective.  Who agrees and hears that another one does not is told no more:
        what that one has met is not known here.

        Parameters
        ----------
        vote : int
            This rank's.
        waits : callable
            As `closeranks.comms.wait.wait`.

        Returns
        -------
        int
            The bits that all have set, or the own vote.
        """
        world, votes = self._world, np.array([vote])
        if vote != AGREED:
            engine().end_revoked()
        request = self._comm.Iallreduce(MPI.IN_PLACE, votes, MPI.BAND)
        self._unfinished.append((request, votes))
        if vote == AGREED:
            waits(lambda: request.Test() or world.revoked, progress=engine().progress)
        over = waits(request.Test, deadline=Deadline(_GRACE_S if vote == AGREED else NEWS_S))
        if over:
            self._unfinished.pop()
        if vote != AGREED:
            return vote
        if over and votes[0] == AGREED:
            return AGREED
        world.revoke()
        return AGAIN
