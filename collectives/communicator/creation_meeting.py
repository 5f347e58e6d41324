"""What ranks do together before they make a communicator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.communicator.creation_arguments import Problem, refusing
from closeranks.collectives.engine.error_translation import explaining
from closeranks.comms.mpi import ulfm
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.tracked_communicators import Followed


class Gathering(MPI.Intracomm):
    """A communicator whose ranks come together, so that nobody waits for ever."""

    _service: Service

    def _asked(self, method: str, problem: Problem | None) -> MPI.Intracomm:
        """Refuse on all ranks what cannot be had on one; else see ourselves as `_alias`."""
        alias, careful = self._alias(), self._service.careful
        with explaining(method, alias, self._service.family.world):
            mine = 0.0 if problem is None else 1.0 + careful.rank
            refusing_rank = int(native_handover.agreed_max(careful, [mine])[0]) - 1
            told = careful.bcast(problem, refusing_rank) if refusing_rank >= 0 else None
        if problem is not None:
            raise UsageError(method, *problem)
        if told is not None:
            raise UsageError(method, f"rank {refusing_rank}: {told[0]}", told[1])
        return alias

    def _alias(self) -> MPI.Intracomm:
        """See ourselves as mpi4py's own class."""
        return MPI.Intracomm(self)

    def _gathered(self) -> MPI.Intracomm:
        """See ourselves as mpi4py's own class, when all ranks have come."""
        plain = self._alias()
        if not ulfm.is_on():  # there the library ends who waits for one that does not come
            with explaining("derive", plain, self._service.family.world):
                self._service.careful.Barrier()
        return plain

    def _shaped(self, method: str, *arguments: Any) -> Any:
        """Make a communicator with a topology, which is mpi4py's own."""
        plain = self._gathered()
        with refusing(method):
            return self._followed.made(partial(getattr(plain, method), *arguments), plain.Barrier)

    @property
    def _followed(self) -> Followed:
        """Who revokes what is not ours."""
        raise UsageError("derive", f"{self!r} belongs to no family", "use closeranks.init")
