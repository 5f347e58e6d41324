"""The sixteen collectives that return when they are done.

Signatures, buffer specifications and `IN_PLACE` are mpi4py's.  Each takes
``algorithm=``: "auto", "native" or a name from
`closeranks.collectives.algorithms`. Every rank of the communicator calls them
in the same order; when a call returns, its buffers may be used again.

A call whose size is known to go to the library goes straight to it; what
mpi4py cannot take, or refuses, takes the long way, where errors are explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.native import UNREADABLE
from closeranks.comms.glance import blocks

if TYPE_CHECKING:
    from closeranks.collectives.family import Family
    from closeranks.collectives.operations import Mean
    from closeranks.collectives.service import Service
    from closeranks.comms.message import Spec

_library = MPI.Intracomm


class Blocking(MPI.Intracomm):
    """Collectives that return when they are done."""

    _service: Service
    _family: Family
    #: Operation -> bytes of a buffer -> calls that went straight to the library.
    _quick: dict[str, dict[int, int]]
    _members: int
    _place: int

    def _holds(self, whole: Spec, own: Spec) -> bool:
        """Whether all blocks lie inside ``whole`` and this rank's is as long as ``own``."""
        return blocks(whole, self._place, self._members)[0] == own.nbytes

    def Barrier(self, *, algorithm: str = "auto") -> None:
        """Wait until every rank has arrived.

        Parameters
        ----------
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight and 0 in self._quick["barrier"]:
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
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick, nbytes = self._quick["bcast"], buf.nbytes
                if nbytes in quick:
                    _library.Bcast(self, buf, root)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("bcast", algorithm, buf, root)

    def Reduce(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str = "auto",
    ) -> None:
        """Combine vectors of all ranks; the root gets the result.

        Parameters
        ----------
        sendbuf : buffer specification
            The vector; `IN_PLACE` at the root: it lies in ``recvbuf``.
        recvbuf : buffer specification
            Takes the result at the root, not looked at elsewhere.
        op : MPI.Op or cr.MEAN
            The reduction.
        root : int
            Who gets the result.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick, nbytes = self._quick["reduce"], sendbuf.nbytes
                if nbytes in quick:
                    _library.Reduce(self, sendbuf, recvbuf, op, root)  # type: ignore[arg-type]
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("reduce", algorithm, sendbuf, recvbuf, op, root)

    def Allreduce(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        *,
        algorithm: str = "auto",
    ) -> None:
        """Combine vectors of all ranks; every rank gets the same bits.

        Parameters
        ----------
        sendbuf : buffer specification
            The vector; `IN_PLACE`: it lies in ``recvbuf``.
        recvbuf : buffer specification
            Takes the result.
        op : MPI.Op or cr.MEAN
            The reduction.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["allreduce"], recvbuf.nbytes
                if nbytes in quick:
                    _library.Allreduce(self, sendbuf, recvbuf, op)  # type: ignore[arg-type]
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("allreduce", algorithm, sendbuf, recvbuf, op)

    def Reduce_scatter_block(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        *,
        algorithm: str = "auto",
    ) -> None:
        """Combine vectors of all ranks; each rank gets an equal block.

        Parameters
        ----------
        sendbuf : buffer specification
            As many blocks as ranks; `IN_PLACE`: they lie in ``recvbuf``.
        recvbuf : buffer specification
            Takes this rank's block (in place: as its first block).
        op : MPI.Op or cr.MEAN
            The reduction.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["reduce_scatter_block"], sendbuf.nbytes
                if nbytes in quick:
                    _library.Reduce_scatter_block(self, sendbuf, recvbuf, op)  # type: ignore[arg-type]
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("reduce_scatter_block", algorithm, sendbuf, recvbuf, op)

    def Reduce_scatter(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        recvcounts: Any = None,
        op: MPI.Op | Mean = MPI.SUM,
        *,
        algorithm: str = "auto",
    ) -> None:
        """Combine vectors of all ranks; each rank gets a block of its own size.

        Parameters
        ----------
        sendbuf : buffer specification
            All blocks; `IN_PLACE`: they lie in ``recvbuf``.
        recvbuf : buffer specification
            Takes this rank's block (in place: at its front).
        recvcounts : array_like of int, optional
            Entries of each rank's block, equal on all ranks; asked of the ranks
            if not given.
        op : MPI.Op or cr.MEAN
            The reduction.
        algorithm : str
            Which algorithm.
        """
        given = self._service.received_counts(recvbuf) if recvcounts is None else recvcounts
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["reduce_scatter"], sendbuf.nbytes
                if nbytes in quick:
                    _library.Reduce_scatter(self, sendbuf, recvbuf, given, op)  # type: ignore[arg-type]
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("reduce_scatter", algorithm, sendbuf, recvbuf, given, op)

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
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["allgather"], sendbuf.nbytes
                if nbytes in quick and recvbuf.nbytes == nbytes * self._members:
                    _library.Allgather(self, sendbuf, recvbuf)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("allgather", algorithm, sendbuf, recvbuf)

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
        if algorithm == "auto" and self._family.straight:
            try:
                quick = self._quick["allgatherv"]
                own, total = blocks(recvbuf, self._place, self._members)
                if total in quick and sendbuf.nbytes == own:
                    _library.Allgatherv(self, sendbuf, recvbuf)
                    quick[total] += 1
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
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick, nbytes = self._quick["gather"], sendbuf.nbytes
                if nbytes in quick and (root != self._place or recvbuf.nbytes == nbytes * self._members):
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
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick = self._quick["gatherv"]
                if 0 in quick and (root != self._place or self._holds(recvbuf, sendbuf)):
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
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick, nbytes = self._quick["scatter"], recvbuf.nbytes
                if nbytes in quick and (root != self._place or sendbuf.nbytes == nbytes * self._members):
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
        if algorithm == "auto" and self._family.straight and -1 < root < self._members:
            try:
                quick = self._quick["scatterv"]
                if 0 in quick and (root != self._place or self._holds(sendbuf, recvbuf)):
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
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["alltoall"], sendbuf.nbytes
                if nbytes in quick and recvbuf.nbytes == nbytes:
                    _library.Alltoall(self, sendbuf, recvbuf)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("alltoall", algorithm, sendbuf, recvbuf)

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
        if algorithm == "auto" and self._family.straight:
            try:
                quick = self._quick["alltoallv"]
                if 0 in quick:
                    own, _ = blocks(sendbuf, self._place, self._members)
                    if blocks(recvbuf, self._place, self._members)[0] == own:
                        _library.Alltoallv(self, sendbuf, recvbuf)
                        quick[0] += 1
                        return
            except UNREADABLE:
                pass
        self._service.block("alltoallv", algorithm, sendbuf, recvbuf)

    def Scan(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op = MPI.SUM, *, algorithm: str = "auto"
    ) -> None:
        """Combine the vectors of rank 0 up to this rank.

        Parameters
        ----------
        sendbuf : buffer specification
            The vector; `IN_PLACE`: it lies in ``recvbuf``.
        recvbuf : buffer specification
            Takes the result.
        op : MPI.Op
            The reduction.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["scan"], recvbuf.nbytes
                if nbytes in quick:
                    _library.Scan(self, sendbuf, recvbuf, op)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("scan", algorithm, sendbuf, recvbuf, op)

    def Exscan(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op = MPI.SUM, *, algorithm: str = "auto"
    ) -> None:
        """Combine the vectors of the ranks before this one.

        Parameters
        ----------
        sendbuf : buffer specification
            The vector; `IN_PLACE`: it lies in ``recvbuf``.
        recvbuf : buffer specification
            Takes the result; undefined on rank 0.
        op : MPI.Op
            The reduction.
        algorithm : str
            Which algorithm.
        """
        if algorithm == "auto" and self._family.straight:
            try:
                quick, nbytes = self._quick["exscan"], recvbuf.nbytes
                if nbytes in quick:
                    _library.Exscan(self, sendbuf, recvbuf, op)
                    quick[nbytes] += 1
                    return
            except UNREADABLE:
                pass
        self._service.block("exscan", algorithm, sendbuf, recvbuf, op)
