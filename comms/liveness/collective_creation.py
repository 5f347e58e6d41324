"""Objects that all ranks make together, or none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from closeranks.comms.liveness.agreement import agree
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import number
from closeranks.comms.wait import Deadline
from closeranks.errors import Error, PeerError, Revoked

if TYPE_CHECKING:
    from mpi4py import MPI


_M = TypeVar("_M")

#: What a rank says that has made its part; above it one bit for every depth.
_MADE: Final = 1
_DEPTHS: Final = 16
#: How many `all_or_none` this process is in, by the communicator's number.
_within: Final[Counter[int]] = Counter()


class _Patience:
    """How long ranks may take to meet the same bad input as this one, in seconds."""

    alike_s = 5.0


def hurry(limit_s: float) -> None:
    """Let who meets bad input wait for a quarter of a limit at most.

    Local; of several limits the least counts.

    Parameters
    ----------
    limit_s : float
        How long what is made may take, in seconds: then all would be ended.
    """
    _Patience.alike_s = min(_Patience.alike_s, limit_s / 4)


def all_or_none(
    comm: MPI.Intracomm, make: Callable[[], _M], undo: Callable[[_M], object] | None = None
) -> _M:
    """Make something with the other ranks, or fail on all of them.

    Collective over the living; one agreement where the library notices deaths,
    elsewhere nothing but ``make``.  A collective may go well on some ranks and
    fail on others.  Who fails leaves, and who goes on waits for him in the next
    agreement for ever: nothing ends that.  So whatever may fail on the way to an
    agreement, or makes a communicator, is made like this.

    ``make`` may do the same with parts of it, on the same communicator.  A rank
    may fail before or after a part, while others fail in it: who is in none waits
    until nobody is in one any more.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; revoked by who fails, so that nobody waits for him in ``make``.
        After some seconds, where all meet the same: bad input is told as it is.
    make : callable
        Collective over ``comm``.  May use communicators of its own if it revokes
        them when it fails.
    undo : callable, optional
        Takes what this rank has made, if others have not.

    Returns
    -------
    object
        What ``make`` gave.

    Raises
    ------
    Exception
        What kept this rank from it.
    Revoked
        If other ranks were kept from it.
    """
    if not ulfm.is_on():
        return make()
    with _deeper(comm) as depth:
        try:
            made = make()
        except Exception as error:
            _fail(comm, error, depth)
            raise
        if _is_made(comm, _MADE, depth):
            return made
    if undo is not None:
        undo(made)
    raise Revoked("what the ranks make together")


@contextmanager
def _deeper(comm: MPI.Intracomm) -> Iterator[int]:
    """Count how deep this process is in what it makes with these ranks.  Local."""
    key = number(comm)
    _within[key] += 1
    try:
        yield _within[key]
    finally:
        _within[key] -= 1
        if not _within[key]:
            del _within[key]


def _fail(comm: MPI.Intracomm, error: Exception, depth: int) -> None:
    """Let all fail; who meets bad input gives the others time to meet it, too."""
    patience = Deadline(_Patience.alike_s)
    is_alike = isinstance(error, Error) and not isinstance(error, PeerError)

    def rouse() -> None:
        if not is_alike or patience.expired:
            ulfm.revoke(comm)

    rouse()
    _is_made(comm, 0, depth, rouse)


def _is_made(
    comm: MPI.Intracomm, made: int, depth: int, rouse: Callable[[], object] | None = None
) -> bool:
    """Agree whether all have made it, when nobody is deeper."""
    shallow = sum(1 << level for level in range(depth, _DEPTHS))
    while True:
        agreed, _ = agree(comm, made | shallow, rouse=rouse)
        if agreed & 1 << depth:
            return bool(agreed & _MADE)
