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

#: Flag of a rank that has made its part; above it one bit for every depth.
_MADE: Final = 1
_DEPTHS: Final = 16
#: Communicator's number -> how many `all_or_none` this process is in.
_within: Final[Counter[int]] = Counter()


class _Patience:
    """How long ranks may take to meet the same bad input as this one, in seconds."""

    alike_s = 5.0


def limit_patience(limit_s: float) -> None:
    """Let a rank that meets bad input wait for a quarter of a limit at most.

    Local; of several limits the least counts.

    Parameters
    ----------
    limit_s : float
        How long the creation may take, in seconds; later the process is ended.
    """
    _Patience.alike_s = min(_Patience.alike_s, limit_s / 4)


def all_or_none(
    comm: MPI.Intracomm, make: Callable[[], _M], undo: Callable[[_M], object] | None = None
) -> _M:
    """Make an object with the other ranks, or fail on all of them.

    Collective over the living ranks: one agreement if the library notices deaths,
    else nothing but ``make``.  A collective may succeed on some ranks and fail on
    others.  A rank that fails leaves, and a rank that goes on would wait for it in
    the next agreement for ever.  So all steps that may fail before an agreement,
    or that make a communicator, are made here.

    ``make`` may call this function for parts, on the same communicator.  A rank
    may fail before or after a part while others fail inside it.  A rank outside
    of all parts waits until no rank is inside a part.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.  A rank that fails revokes it, so that no rank waits for it in
        ``make``.  With bad input it first waits some seconds: all ranks may meet
        the same input, and raise the error itself.
    make : callable
        Collective over ``comm``.  May use communicators of its own if it revokes
        them when it fails.
    undo : callable, optional
        Takes the object of this rank, if other ranks have failed.

    Returns
    -------
    object
        Result of ``make``.

    Raises
    ------
    Exception
        The error of ``make`` on this rank.
    Revoked
        If other ranks have failed.
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
    """Count how deep this process is in `all_or_none` with these ranks.  Local."""
    key = number(comm)
    _within[key] += 1
    try:
        yield _within[key]
    finally:
        _within[key] -= 1
        if not _within[key]:
            del _within[key]


def _fail(comm: MPI.Intracomm, error: Exception, depth: int) -> None:
    """Let all ranks fail; with bad input, give them time to meet it too."""
    patience = Deadline(_Patience.alike_s)
    is_alike = isinstance(error, Error) and not isinstance(error, PeerError)

    def on_wait() -> None:
        if not is_alike or patience.expired:
            ulfm.revoke(comm)

    on_wait()
    _is_made(comm, 0, depth, on_wait)


def _is_made(
    comm: MPI.Intracomm, made: int, depth: int, on_wait: Callable[[], object] | None = None
) -> bool:
    """Agree whether all have made it, when no rank is deeper."""
    shallow = sum(1 << level for level in range(depth, _DEPTHS))
    while True:
        agreed, _ = agree(comm, made | shallow, on_wait=on_wait)
        if agreed & 1 << depth:
            return bool(agreed & _MADE)
