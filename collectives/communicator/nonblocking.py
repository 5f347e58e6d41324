"""The sixteen collectives that return at once with a `Request`.

Arguments are those of the blocking methods, see
`closeranks.collectives.communicator.blocking`.  The buffers belong to the
request until it is over.  With a library below MPI_THREAD_MULTIPLE, "auto" is
the library's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.communicator.adoption import Adopted
from closeranks.collectives.dispatch.plan_cache import received_counts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.reduction.op import Mean
    from closeranks.comms.buffers.buffer_spec import Spec


class Nonblocking(Adopted):
    """Collectives that return at once; as in MPI, all ranks start them in one order."""

    def Ibarrier(self, *, algorithm: str = "auto") -> Request:
        """Start `Barrier` and return."""
        return self._service.begin("barrier", algorithm)

    def Ibcast(self, buf: Spec, root: int = 0, *, algorithm: str = "auto") -> Request:
        """Start `Bcast` and return."""
        return self._service.begin("bcast", algorithm, buf, root)

    def Ireduce(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        op: MPI.Op | Mean = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str = "auto",
    ) -> Request:
        """Start `Reduce` and return."""
        return self._service.begin("reduce", algorithm, sendbuf, recvbuf, op, root)

    def Iallreduce(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op | Mean = MPI.SUM, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Allreduce` and return."""
        return self._service.begin("allreduce", algorithm, sendbuf, recvbuf, op)

    def Ireduce_scatter_block(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op | Mean = MPI.SUM, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Reduce_scatter_block` and return."""
        return self._service.begin("reduce_scatter_block", algorithm, sendbuf, recvbuf, op)

    def Ireduce_scatter(
        self,
        sendbuf: Spec,
        recvbuf: Spec,
        recvcounts: Any = None,
        op: MPI.Op | Mean = MPI.SUM,
        *,
        algorithm: str = "auto",
    ) -> Request:
        """Start `Reduce_scatter` and return."""
        given = received_counts(self._service, recvbuf) if recvcounts is None else recvcounts
        return self._service.begin("reduce_scatter", algorithm, sendbuf, recvbuf, given, op)

    def Iallgather(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> Request:
        """Start `Allgather` and return."""
        return self._service.begin("allgather", algorithm, sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> Request:
        """Start `Allgatherv` and return."""
        return self._service.begin("allgatherv", algorithm, sendbuf, recvbuf)

    def Igather(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Gather` and return."""
        return self._service.begin("gather", algorithm, sendbuf, recvbuf, root)

    def Igatherv(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Gatherv` and return."""
        return self._service.begin("gatherv", algorithm, sendbuf, recvbuf, root)

    def Iscatter(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Scatter` and return."""
        return self._service.begin("scatter", algorithm, sendbuf, recvbuf, root)

    def Iscatterv(
        self, sendbuf: Spec, recvbuf: Spec, root: int = 0, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Scatterv` and return."""
        return self._service.begin("scatterv", algorithm, sendbuf, recvbuf, root)

    def Ialltoall(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> Request:
        """Start `Alltoall` and return."""
        return self._service.begin("alltoall", algorithm, sendbuf, recvbuf)

    def Ialltoallv(self, sendbuf: Spec, recvbuf: Spec, *, algorithm: str = "auto") -> Request:
        """Start `Alltoallv` and return."""
        return self._service.begin("alltoallv", algorithm, sendbuf, recvbuf)

    def Iscan(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op = MPI.SUM, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Scan` and return."""
        return self._service.begin("scan", algorithm, sendbuf, recvbuf, op)

    def Iexscan(
        self, sendbuf: Spec, recvbuf: Spec, op: MPI.Op = MPI.SUM, *, algorithm: str = "auto"
    ) -> Request:
        """Start `Exscan` and return."""
        return self._service.begin("exscan", algorithm, sendbuf, recvbuf, op)
