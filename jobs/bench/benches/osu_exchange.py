"""Messages of one size between two ranks, as the OSU benchmarks send them.

A ping-pong of blocking calls, and windows of non-blocking sends that the
receiver answers with one short message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_WINDOW = 64
_IN_FLIGHT = 8 << 20


def window(nbytes: int) -> int:
    """Count the messages of a window.

    Parameters
    ----------
    nbytes : int
        Size of one.

    Returns
    -------
    int
        64 as in OMB, fewer where that would exceed 8 MiB, at least 1.
    """
    return max(1, min(_WINDOW, _IN_FLIGHT // nbytes))


class Exchange:
    """Messages of one size between this rank and a partner.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator.
    partner : int, optional
        The other rank; None for a rank that only looks on.
    first : bool
        Whether this rank begins.
    nbytes : int
        Size of a message.
    """

    def __init__(self, comm: MPI.Intracomm, partner: int | None, first: bool, nbytes: int) -> None:
        self._comm, self._partner, self._first = comm, partner, first
        self._window = window(nbytes)
        self._out = self._content(comm.Get_rank(), nbytes)
        self._in = np.zeros(nbytes, np.uint8)
        self._short = np.zeros(4, np.uint8)
        self._receives = False

    def pingpong(self) -> None:
        """Send one message there and one back."""
        if self._partner is None:
            return
        self._receives = True
        if self._first:
            self._comm.Send(self._out, self._partner)
            self._comm.Recv(self._in, self._partner)
        else:
            self._comm.Recv(self._in, self._partner)
            self._comm.Send(self._out, self._partner)

    def one_way(self) -> None:
        """Send a window from the first rank, and a short answer back."""
        if self._partner is None:
            return
        if self._first:
            self._finish(self._send())
            self._comm.Recv(self._short, self._partner, 1)
        else:
            self._finish(self._receive())
            self._comm.Send(self._short, self._partner, 1)

    def both_ways(self) -> None:
        """Send windows in both directions at once."""
        if self._partner is not None:
            self._finish(self._receive() + self._send())

    def wrong(self) -> int:
        """Count wrong elements of the last message received here; local."""
        if self._partner is None or not self._receives:
            return 0
        expected = self._content(self._partner, len(self._in))
        return int(np.count_nonzero(self._in != expected))

    @staticmethod
    def _content(rank: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Fill a message with a pattern of its sender."""
        return np.resize(np.arange(1 + rank % 5, 252, dtype=np.uint8), nbytes)

    def _send(self) -> list[MPI.Request]:
        assert self._partner is not None
        return [self._comm.Isend(self._out, self._partner) for _ in range(self._window)]

    def _receive(self) -> list[MPI.Request]:
        assert self._partner is not None
        self._receives = True
        return [self._comm.Irecv(self._in, self._partner) for _ in range(self._window)]

    def _finish(self, requests: list[MPI.Request]) -> None:
        from mpi4py import MPI

        MPI.Request.Waitall(requests)
