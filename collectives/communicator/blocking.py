"""The sixteen collectives that return when they are done.

Signatures, buffer specifications and `IN_PLACE` are mpi4py's.  Each takes
``algorithm=``: "auto", "native" or a name from
`closeranks.collectives.algorithms`.  Every rank of the communicator calls them
in the same order; when a call returns, its buffers may be used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.communicator.adoption import Adopted
from closeranks.collectives.dispatch.plan_cache import received_counts

if TYPE_CHECKING:
    from closeranks.collectives.reduction.op import Mean
    from closeranks.comms.buffers.buffer_spec import Spec


class Blocking(Adopted):
    """Collectives that return when they are done."""

    def Barrier(self, *, algorithm: str = "auto") -> None:
        """Wait until every rank has arrived.

        Parameters
        ----------
        algorithm : str
            Which algorithm.
        """
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
        self._service.block("bcast", algorithm, buf, root)

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
        self._service.block("alltoallv", algorithm, sendbuf, recvbuf)

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
        given = received_counts(self._service, recvbuf) if recvcounts is None else recvcounts
        self._service.block("reduce_scatter", algorithm, sendbuf, recvbuf, given, op)

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
        self._service.block("exscan", algorithm, sendbuf, recvbuf, op)
