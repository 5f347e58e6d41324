"""What one rank does for the others while it waits in a call, and they do not come before."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

#: Long enough for the rank to wait in the call.
_LATE_S = 0.0005
#: Long enough for a message that its receiver has to ask for.
_LONG = 1 << 15


class Served:
    """Windows and messages beside the calls that are tested.  Collective to make.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of mpi4py; has a duplicate made.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._counter = np.zeros(1)
        self._window = MPI.Win.Create(self._counter, comm=self._comm)
        self._sent: list[MPI.Request] = []
        self._wanted = 0

    def count(self, rank: int) -> None:
        """Let all others change a number of one rank's, by one-sided calls.

        That rank returns at once, the others when they are through.
        """
        if rank == self._comm.rank:
            self._wanted += self._comm.size - 1
            return
        time.sleep(_LATE_S)
        self._window.Lock(rank, MPI.LOCK_SHARED)
        self._window.Fetch_and_op(np.ones(1), np.zeros(1), rank, 0, MPI.SUM)
        self._window.Unlock(rank)

    def send(self, rank: int) -> None:
        """Let all others take a message of one rank's, which does not wait for its end."""
        if rank == self._comm.rank:
            data = np.full(_LONG, 7.0)
            others = [other for other in range(self._comm.size) if other != rank]
            self._sent += [self._comm.Isend(data, other) for other in others]
            return
        time.sleep(_LATE_S)
        data = np.zeros(_LONG)
        self._comm.Recv(data, rank)
        assert (data == 7).all()

    def close(self) -> None:
        """See that all was done, and free the rest.  Collective."""
        MPI.Request.Waitall(self._sent)
        self._comm.Barrier()
        rank = self._comm.rank
        self._window.Lock(rank, MPI.LOCK_SHARED)
        assert self._counter[0] == self._wanted
        self._window.Unlock(rank)
        self._window.Free()
        self._comm.Free()
