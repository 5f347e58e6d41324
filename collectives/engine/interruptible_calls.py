"""Collective calls that end where a rank has given up: for what is set up.

MPI's blocking calls wait for such a rank for ever. So who waits here looks
for the news. What MPI has in a blocking form only is called when all have
come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from mpi4py import MPI

from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.comms.liveness.failure_notices import Notices

_C = TypeVar("_C", bound=MPI.Comm)
#: What was given up half-way, with its buffers.
_left: Final[list[object]] = []
#: What an error names; who knows for which call it is names that.
SET_UP: Final = "set-up"


class Interruptible(MPI.Intracomm):
    """A communicator as mpi4py knows it, whose collective calls raise `Revoked`.

    Another handle of one that lives elsewhere; made by `interruptible`.  Only what
    this package uses to set things up is of this kind.
    """

    _notices: Notices

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self._finish(self.Ibarrier())

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce to all ranks."""
        self._finish(self.Iallreduce(sendbuf, recvbuf, op), sendbuf, recvbuf)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather to all ranks."""
        self._finish(self.Iallgather(sendbuf, recvbuf), sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather to all ranks, of each as much as it has."""
        self._finish(self.Iallgatherv(sendbuf, recvbuf), sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give each rank its block."""
        self._finish(self.Ialltoall(sendbuf, recvbuf), sendbuf, recvbuf)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Give the root's to all ranks."""
        self._finish(self.Ibcast(buf, root), buf)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object of every rank to all."""
        data = np.frombuffer(MPI.pickle.dumps(sendobj), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        self.Allgather(np.array([data.size]), lengths)
        found, stops = np.zeros(int(lengths.sum()), np.uint8), np.cumsum(lengths)
        self.Allgatherv([data, MPI.BYTE], [found, (lengths, stops - lengths), MPI.BYTE])
        return [MPI.pickle.loads(found[stop - length : stop])
                for stop, length in zip(stops.tolist(), lengths.tolist(), strict=True)]  # fmt: skip

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of the root to all ranks."""
        text = MPI.pickle.dumps(obj) if self.rank == root else b""
        length = np.array([len(text)])
        self.Bcast(length, root)
        data = np.zeros(int(length[0]), np.uint8)
        data[: len(text)] = np.frombuffer(text, np.uint8)
        self.Bcast([data, MPI.BYTE], root)
        return obj if self.rank == root else MPI.pickle.loads(data)

    def Dup(self, info: MPI.Info | None = None) -> Interruptible:
        """Duplicate it, when all have come."""
        return self._made(lambda plain: plain.Dup(info))

    def Split(self, color: int = 0, key: int = 0) -> Interruptible:
        """Divide it, when all have come."""
        return self._made(lambda plain: MPI.Intracomm(plain.Split(color, key)))

    def _made(self, make: Callable[[MPI.Intracomm], MPI.Intracomm]) -> Interruptible:
        self.Barrier()
        with self._notices.inside:
            return interruptible(make(MPI.Intracomm(self)), self._notices)

    def _finish(self, request: MPI.Request, *buffers: Any) -> None:
        """Wait for an operation, or raise what has come between."""
        try:
            wait(request.Test, abort=self._look)
        except BaseException:
            keep_left(request, *buffers)
            raise

    def _look(self) -> None:
        self._notices.check(SET_UP)


def keep_left(*things: object) -> None:
    """Keep what was given up half-way: the library may still write there.  Local.

    Parameters
    ----------
    *things
        Requests and buffers.
    """
    _left.extend(things)


def interruptible(comm: MPI.Intracomm, notices: Notices) -> Interruptible:
    """Give another handle of a communicator, see `Interruptible`.  Local.

    Parameters
    ----------
    comm : MPI.Intracomm
        Freed by either handle.
    notices : Notices
        Of the family.

    Returns
    -------
    Interruptible
        MPI.COMM_NULL in this guise if that is what was given.
    """
    made = Interruptible(comm)
    made._notices = notices
    return made
