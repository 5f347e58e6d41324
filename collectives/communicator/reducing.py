"""The blocking collectives that reduce; see `blocking`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.dispatch.receive_counts import received_counts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.reduction.op import Mean
    from closeranks.comms.buffers.buffer_spec import Spec


class Reducing(MPI.Intracomm):
    """Collectives that combine vectors and return when they are done."""

    _service: Service

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
