"""The last meeting of ranks whose collectives were given up."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


class Farewell:
    """A barrier of messages.

    A collective that was given up may still be under way on some ranks and never
    have begun on others: no other of that communicator would come to an end.

    Collective to make: begins.

    Parameters
    ----------
    traffic : MPI.Intracomm
        Carries the messages.
    tag : int
        Which nobody else uses there.
    """

    def __init__(self, traffic: MPI.Intracomm, tag: int) -> None:
        self._traffic, self._tag, self._word = traffic, tag, np.zeros(0, np.uint8)
        is_first = traffic.rank == 0
        self._others = range(1, traffic.size) if is_first else range(1)
        self._told: list[MPI.Request] = [] if is_first else self._tell()
        self._heard = [traffic.Irecv(self._word, other, tag) for other in self._others]

    def _tell(self) -> list[MPI.Request]:
        return [self._traffic.Isend(self._word, other, self._tag) for other in self._others]

    def is_over(self) -> bool:
        """Tell whether all have come.  Local; calls MPI."""
        if not MPI.Request.Testall(self._heard):
            return False
        if not self._told:  # the first rank has heard of all, and says so
            self._told = self._tell()
        return MPI.Request.Testall(self._told)
