"""The last barrier of a world, for ranks that may have given it up."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from closeranks.collectives.dispatch import request as dropped_requests
from closeranks.comms.exit.signal_handlers import DeferredHandlers, defer_handlers


class FinalMeeting:
    """A barrier of messages, which tells whether any rank has given the world up.

    A rank may give up at any time before it closes: while the others wait for it
    here already, or unheard by them, on another node.  So all ranks meet in the
    same way whatever they know.  They do not meet in a collective of the library:
    a collective that was given up may be under way on some ranks and never have
    begun on others, and then no later one ends.

    The rounds are those of the dissemination barrier: Hensgen, Finkel, Manber,
    "Two algorithms for barrier synchronization", 1988.  Local to make.

    Parameters
    ----------
    traffic : MPI.Intracomm
        Carries the messages.
    tag : int
        A tag that no other message there uses.
    given_up : bool
        Whether this rank has given up.

    Attributes
    ----------
    given_up : bool
        Whether any rank has, once it is over.
    """

    def __init__(self, traffic: MPI.Intracomm, tag: int, *, given_up: bool) -> None:
        self.given_up = given_up
        self._traffic, self._tag = traffic, tag
        self._distance, self._flying = 1, list[MPI.Request]()
        self._said, self._heard = np.zeros(1, np.uint8), np.zeros(1, np.uint8)

    def __del__(self) -> None:
        """Keep memory that the library may still write to, if no rank has come."""
        for request in self._flying:
            dropped_requests.keep(request, (self._said, self._heard))

    def is_over(self) -> bool:
        """Come, and tell whether all have.  Local; calls MPI."""
        while MPI.Request.Testall(self._flying):
            self.given_up = self.given_up or bool(self._heard[0])
            if self._distance >= self._traffic.size:
                return True
            with DeferredHandlers():
                defer_handlers()  # a round that is begun twice would be heard twice
                self._exchange()
        return False

    def _exchange(self) -> None:
        """Begin a round: send the state to a rank ahead, receive that of one behind."""
        rank, size = self._traffic.rank, self._traffic.size
        self._said[0] = self.given_up
        self._flying = [
            self._traffic.Irecv(self._heard, (rank - self._distance) % size, self._tag),
            self._traffic.Isend(self._said, (rank + self._distance) % size, self._tag),
        ]
        self._distance *= 2
