"""Making something of those who are left, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from mpi4py import MPI

from closeranks.collectives.engine.error_translation import may_blame
from closeranks.comms.liveness.agreement import agree
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.errors import Unavailable

#: What a rank says of what it has made; the ranks agree on the bits that all have set.
_MADE: Final = 0b01
_POSSIBLE: Final = 0b10


class Made(Protocol):
    """What may have to be dropped again."""

    def drop(self) -> None:
        """Let go of it; local."""


_M = TypeVar("_M", bound=Made)


def together(base: MPI.Intracomm, make: Callable[[MPI.Intracomm], _M]) -> _M:
    """Make something of those who are left until all of them have made it.

    Collective over the living of ``base``.

    Parameters
    ----------
    base : MPI.Intracomm
        Revoked.
    make : callable
        Takes the communicator of those who are left; collective over it.

    Returns
    -------
    object
        What it has made, on all of them, with nobody lost meanwhile.

    Raises
    ------
    Exception
        What kept this rank from making it, for another reason than a death.
    Unavailable
        If another rank was kept from it.
    """
    while True:
        base.Ack_failed()  # of whom nothing more is expected
        whole = _shrunk(base)
        if whole is None:
            continue
        made, problem = _tried(whole, make)
        flags = (0 if made is None else _MADE) | (0 if problem else _POSSIBLE)
        agreed, died = agree(base, flags)
        if agreed & _MADE and not died:
            assert made is not None
            return made
        deferred_free.bury(whole)
        if made is not None:
            made.drop()
        if not agreed & _POSSIBLE:
            raise problem or Unavailable("a world of those who are left", "relaunch")


def _shrunk(base: MPI.Intracomm) -> MPI.Intracomm | None:
    """Shrink; None, on all ranks, where that has failed on any.

    Nobody uses what has come of it, or revokes it, before all have it: a rank of
    Open MPI 5 that is still making a communicator crashes when it is revoked.
    """
    whole = None
    try:
        whole = ulfm.shrink(base)
    except MPI.Exception as error:
        if not ulfm.speaks_of_failure(error, base):
            raise
    everybody, _ = agree(base, int(whole is not None))
    if whole is not None and not everybody:
        deferred_free.bury(whole)
    return whole if everybody else None


def _tried(
    whole: MPI.Intracomm, make: Callable[[MPI.Intracomm], _M]
) -> tuple[_M | None, Exception | None]:
    """Make it, or give what kept this rank from it, if no death did."""
    try:
        return make(whole), None
    except Exception as error:
        blamed = may_blame(error, whole)
        ulfm.revoke(whole)
        return None, None if blamed else error
