"""The sixteen collectives as persistent operations: planned once, started often.

Arguments are those of the blocking methods, see
`closeranks.collectives.communicator.blocking`.  The buffers belong to the
operation from each start to the end of its wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.communicator.adoption import Adopted
from closeranks.collectives.dispatch.plan_cache import received_counts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.persistent_operation import Persistent
    from closeranks.collectives.reduction.op import Mean
    from closeranks.comms.buffers.buffer_spec import Spec


class Prepared(Adopted):
    """Persistent operations; all ranks make and start them in one order."""

    def Barrier_init(
        self, info: MPI.Info = MPI.INFO_NULL, *, algorithm: str = "auto"
    ) -> Persistent:
        """Prepare `Barrier`."""
        return self._service.prepare("barrier", algorithm, info=info)

    def Bcast_init(
        self, buf: Spec, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *, algorithm: str = "auto"
    ) -> Persistent:
        """Prepare `Bcast`."""
        return self._service.prepare("bcast", algorithm, buf, root, info=info)

    def Reduce_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Reduce`."""
        return self._service.prepare("reduce", algorithm, sendbuf, recvbuf, op, root, info=info)

    def Allreduce_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Allreduce`."""
        return self._service.prepare("allreduce", algorithm, sendbuf, recvbuf, op, info=info)

    def Reduce_scatter_block_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Reduce_scatter_block`."""
        return self._service.prepare(
            "reduce_scatter_block", algorithm, sendbuf, recvbuf, op, info=info
        )

    def Reduce_scatter_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        recvcounts: Any = None,
        op: MPI.Op | Mean = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Reduce_scatter`."""
        given = received_counts(self._service, recvbuf) if recvcounts is None else recvcounts
        return self._service.prepare(
            "reduce_scatter", algorithm, sendbuf, recvbuf, given, op, info=info
        )

    def Allgather_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Allgather`."""
        return self._service.prepare("allgather", algorithm, sendbuf, recvbuf, info=info)

    def Allgatherv_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Allgatherv`."""
        return self._service.prepare("allgatherv", algorithm, sendbuf, recvbuf, info=info)

    def Gather_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Gather`."""
        return self._service.prepare("gather", algorithm, sendbuf, recvbuf, root, info=info)

    def Gatherv_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Gatherv`."""
        return self._service.prepare("gatherv", algorithm, sendbuf, recvbuf, root, info=info)

    def Scatter_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Scatter`."""
        return self._service.prepare("scatter", algorithm, sendbuf, recvbuf, root, info=info)

    def Scatterv_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Scatterv`."""
        return self._service.prepare("scatterv", algorithm, sendbuf, recvbuf, root, info=info)

    def Alltoall_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Alltoall`."""
        return self._service.prepare("alltoall", algorithm, sendbuf, recvbuf, info=info)

    def Alltoallv_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Alltoallv`."""
        return self._service.prepare("alltoallv", algorithm, sendbuf, recvbuf, info=info)

    def Scan_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Scan`."""
        return self._service.prepare("scan", algorithm, sendbuf, recvbuf, op, info=info)

    def Exscan_init(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        algorithm: str = "auto",
    ) -> Persistent:
        """Prepare `Exscan`."""
        return self._service.prepare("exscan", algorithm, sendbuf, recvbuf, op, info=info)
