"""Long messages of plans with registers: a receiver may not know the length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.engine.bound_plan import message
from closeranks.collectives.engine.ignored_errors import is_gone, is_over, quietly
from closeranks.collectives.engine.progress_answer import Look
from closeranks.comms.mpi import message_limits

Bytes = NDArray[np.uint8]


class LongMessage:
    """One end of a message in pieces, looked at until all are through.

    Local.

    Parameters
    ----------
    traffic : MPI.Intracomm
        What carries it.
    peer, tag : int
        The other end, and what tells messages apart.
    sending : bool
        Whether it is sent.
    """

    def __init__(self, traffic: MPI.Intracomm, peer: int, tag: int, *, sending: bool) -> None:
        self._traffic, self._peer, self._tag, self._sending = traffic, peer, tag, sending
        self._requests: list[MPI.Request] = []
        self._rooms: list[Bytes] = []
        self._finish: Callable[[], None] | None = None

    def post(self, data: Bytes, finish: Callable[[], None] | None = None) -> Look:
        """Post all pieces of a message whose length is known; ``finish`` runs at the end."""
        start = self._traffic.Isend if self._sending else self._traffic.Irecv
        self._finish = finish
        for piece in message_limits.cut_openly(data.nbytes):
            self._requests.append(start(message(data[piece]), self._peer, self._tag))
        return Look.WAITING

    def meet(self, arrived: MPI.Message, nbytes: int) -> None:
        """Receive a piece that is not the last one."""
        self._rooms.append(np.empty(nbytes, np.uint8))
        self._requests.append(arrived.Irecv(message(self._rooms[-1])))

    @property
    def met(self) -> int:
        """Bytes of the pieces that were met so far."""
        return sum(room.nbytes for room in self._rooms)

    def end(self, arrived: MPI.Message, whole: Bytes) -> None:
        """Receive the last piece, now that there is room for the whole."""
        met, rooms = self.met, self._rooms
        self._requests.append(arrived.Irecv(message(whole[met:])))

        def finish() -> None:
            whole[:met] = np.concatenate(rooms)

        self._finish = finish

    @property
    def ended(self) -> bool:
        """Whether all pieces are known."""
        return self._finish is not None

    def look(self) -> Look:
        """Look whether all pieces are through; never blocks."""
        self._requests = [request for request in self._requests if not is_over(request)]
        if self._requests:
            return Look.WAITING
        if self._finish is not None:
            self._finish()
        self._rooms.clear()
        return Look.DONE

    def cancel(self) -> None:
        """Give up what was to be received.  Local."""
        for request in () if self._sending else self._requests:
            quietly(request.Cancel)

    def is_held(self) -> bool:
        """Whether MPI has its memory still; never blocks."""
        self._requests = [request for request in self._requests if not is_gone(request)]
        return bool(self._requests)
