"""The sixteen collectives that return when they are done.

Signatures, buffer specifications and `IN_PLACE` are mpi4py's.  Each takes
``algorithm=``: "auto", "native" or a name from
`closeranks.collectives.algorithms`. Every rank of the communicator calls them
in the same order; when a call returns, its buffers may be used again.

Those that reduce are in `closeranks.collectives.reducing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.native import UNREADABLE
from closeranks.collectives.reducing import Reducing

if TYPE_CHECKING:
    from closeranks.comms.message import Spec

_library = MPI.Intracomm


class Blocking(Reducing):
    """Collectives that return when they are done."""

    __slots__ = ()

    def Barrier(self, *, algorithm: str = "auto") -> None:
        """Wait until every rank has arrived.

        Parameters
        ----------
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and 0 in self._quick["barrier"]:
            _library.Barrier(self)
            self._quick["barrier"][0] += 1
            return
        self._service.block("barrier", algorithm)

    def Bcast(self, buf: Spec, root: int = 0, *, algorithm: str = "auto") -> None:
        """Send the root's buffer to every rank.

        Parameters
        ----------
        buf : buffer specification
            Read at the root, written elsewhere; as many bytes on every rank.
        root : int
            Who sends.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, nbytes = self._quick["bcast"], buf.nbytes
                if nbytes in quick and -1 < root < self._members:
                    _library.Bcast(self, buf, root)
                    quick[nbytes] += 1
                    return None
                near = self._near["bcast"].get(nbytes)
                if near is not None and near.root == root and near.moves(buf, buf):
                    return near.run(buf, buf)
            except UNREADABLE:
                pass
        return self._service.block("bcast", algorithm, buf, root)

    def Allgather(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> None:
        """Collect equal blocks of all ranks on every rank.

        Parameters
        ----------
        sendbuf : buffer specification
            This rank's block; `IN_PLACE`: it lies at its place in ``recvbuf``.
        recvbuf : buffer specification
            Takes all blocks in rank order.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, nbytes = self._quick["allgather"], sendbuf.nbytes
                if nbytes in quick and recvbuf.nbytes == nbytes * self._members:
                    _library.Allgather(self, sendbuf, recvbuf)
                    quick[nbytes] += 1
                    return None
                near = self._near["allgather"].get(nbytes)
                if near is not None and near.moves(sendbuf, recvbuf):
                    return near.run(sendbuf, recvbuf)
            except UNREADABLE:
                pass
        return self._service.block("allgather", algorithm, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> None:
        """Collect blocks of different sizes on every rank.

        Parameters
        ----------
        sendbuf : buffer specification
            This rank's block; `IN_PLACE`: it lies at its place in ``recvbuf``.
        recvbuf : vector specification
            ``[buffer, counts]`` or ``[buffer, (counts, displacements), type]``.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, known = self._quick["allgatherv"], self._received
                if (
                    len(recvbuf) != 2
                    or type(recvbuf[1]) is not list
                    or recvbuf[1] != known.counts
                    or recvbuf[0].nbytes != known.room
                    or recvbuf[0].dtype is not known.dtype
                ):
                    known.read(recvbuf)
                if known.total in quick and sendbuf.nbytes == known.own:
                    _library.Allgatherv(self, sendbuf, recvbuf)
                    quick[known.total] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("allgatherv", algorithm, sendbuf, recvbuf)

    def Gather(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> None:
        """Collect equal blocks of all ranks at the root.

        Parameters
        ----------
        sendbuf : buffer specification
            This rank's block; `IN_PLACE` at the root: it lies in ``recvbuf``.
        recvbuf : buffer specification
            Takes all blocks at the root, not looked at elsewhere.
        root : int
            Who collects.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, nbytes = self._quick["gather"], sendbuf.nbytes
                if (
                    nbytes in quick
                    and -1 < root < self._members
                    and (root != self._place or recvbuf.nbytes == nbytes * self._members)
                ):
                    _library.Gather(self, sendbuf, recvbuf, root)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("gather", algorithm, sendbuf, recvbuf, root)

    def Gatherv(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> None:
        """Collect blocks of different sizes at the root.

        Parameters
        ----------
        sendbuf : buffer specification
            This rank's block; `IN_PLACE` at the root: it lies in ``recvbuf``.
        recvbuf : vector specification
            Takes all blocks at the root, not looked at elsewhere.
        root : int
            Who collects.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick = self._quick["gatherv"]
                if (
                    0 in quick
                    and -1 < root < self._members
                    and (root != self._place or self._received.fits(recvbuf, sendbuf))
                ):
                    _library.Gatherv(self, sendbuf, recvbuf, root)
                    quick[0] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("gatherv", algorithm, sendbuf, recvbuf, root)

    def Scatter(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> None:
        """Hand out equal blocks of the root.

        Parameters
        ----------
        sendbuf : buffer specification
            All blocks at the root, not looked at elsewhere.
        recvbuf : buffer specification
            Takes this rank's block; `IN_PLACE` at the root: it stays.
        root : int
            Who hands out.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, nbytes = self._quick["scatter"], recvbuf.nbytes
                if (
                    nbytes in quick
                    and -1 < root < self._members
                    and (root != self._place or sendbuf.nbytes == nbytes * self._members)
                ):
                    _library.Scatter(self, sendbuf, recvbuf, root)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("scatter", algorithm, sendbuf, recvbuf, root)

    def Scatterv(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> None:
        """Hand out blocks of different sizes of the root.

        Parameters
        ----------
        sendbuf : vector specification
            All blocks at the root, not looked at elsewhere.
        recvbuf : buffer specification
            Takes this rank's block; `IN_PLACE` at the root: it stays.
        root : int
            Who hands out.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick = self._quick["scatterv"]
                if (
                    0 in quick
                    and -1 < root < self._members
                    and (root != self._place or self._sent.fits(sendbuf, recvbuf))
                ):
                    _library.Scatterv(self, sendbuf, recvbuf, root)
                    quick[0] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("scatterv", algorithm, sendbuf, recvbuf, root)

    def Alltoall(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> None:
        """Send one equal block to every rank and receive one from each.

        Parameters
        ----------
        sendbuf : buffer specification
            One block for each rank; `IN_PLACE`: they lie in ``recvbuf``.
        recvbuf : buffer specification
            Takes one block from each rank.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, nbytes = self._quick["alltoall"], sendbuf.nbytes
                if nbytes in quick and recvbuf.nbytes == nbytes:
                    _library.Alltoall(self, sendbuf, recvbuf)
                    quick[nbytes] += 1
                    return None
                near = self._near["alltoall"].get(nbytes)
                if near is not None and near.moves(sendbuf, recvbuf):
                    return near.run(sendbuf, recvbuf)
            except UNREADABLE:
                pass
        return self._service.block("alltoall", algorithm, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> None:
        """Send a block of its own size to every rank and receive one from each.

        Parameters
        ----------
        sendbuf : vector specification
            What goes to each rank; `IN_PLACE`: it lies in ``recvbuf``.
        recvbuf : vector specification
            Takes what comes from each rank.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto":
            try:
                quick, sent, received = self._quick["alltoallv"], self._sent, self._received
                if (
                    len(sendbuf) != 2
                    or type(sendbuf[1]) is not list
                    or sendbuf[1] != sent.counts
                    or sendbuf[0].nbytes != sent.room
                    or sendbuf[0].dtype is not sent.dtype
                ):
                    sent.read(sendbuf)
                if (
                    len(recvbuf) != 2
                    or type(recvbuf[1]) is not list
                    or recvbuf[1] != received.counts
                    or recvbuf[0].nbytes != received.room
                    or recvbuf[0].dtype is not received.dtype
                ):
                    received.read(recvbuf)
                if 0 in quick and sent.own == received.own:
                    _library.Alltoallv(self, sendbuf, recvbuf)
                    quick[0] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("alltoallv", algorithm, sendbuf, recvbuf)
