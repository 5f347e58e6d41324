"""Communicators that are the program's own and are revoked with a world.

mpi4py makes them from a communicator of this package otherwise than by a split
or a duplicate: topologies, intercommunicators, duplicates in the making, and
communicators derived from these.  None of them is made again after a recovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar

from mpi4py import MPI

from closeranks.comms.mpi import deferred_free, ulfm

_C = TypeVar("_C", bound=MPI.Comm)

#: Methods that make a communicator, and end when all their ranks have come.
_MAKERS: Final = (
    "Clone", "Create", "Create_cart", "Create_dist_graph", "Create_dist_graph_adjacent",
    "Create_graph", "Dup", "Dup_with_info", "Merge", "Split", "Split_type", "Sub",
)  # fmt: skip


class _Held(NamedTuple):
    """One of them: usable once its request, if it has one, is through."""

    comm: MPI.Comm
    request: MPI.Request
    born_s: float


class TrackedCommunicators:
    """The program's own communicators of one world.

    Where the library cannot revoke them, nothing is held, and mpi4py's own objects
    are made.  Else the objects are of a subclass, with methods that are followed
    too.
    """

    def __init__(self) -> None:
        self._held: list[_Held] = []

    def made(self, make: Callable[[], _C], meet: Callable[[], object], *, meets: bool = True) -> _C:
        """Make a communicator that is revoked with the world.

        Collective, as ``make`` is.  It may go well on some ranks and fail on others,
        which then have no handle to revoke.  A rank that waited in the communicator
        for one of these would wait for ever.  So no rank has it before all have made
        it.

        Parameters
        ----------
        make : callable
            Makes it.
        meet : callable
            Collective over the same ranks, on a communicator that is revoked by a
            rank that fails in ``make``.  It ends well only if all have come.
        meets : bool
            Whether all of the ranks that ``meet`` is for call this.

        Returns
        -------
        MPI.Comm
            Freed by the program, whenever it likes.
        """
        plain = make()
        if not ulfm.is_on():
            return plain
        if plain != MPI.COMM_NULL:
            plain = _ours(plain)
            plain._followed, plain._meets = self, meets  # type: ignore[attr-defined]
            self._hold(plain, MPI.REQUEST_NULL)
        if meets:
            try:
                meet()
            except MPI.Exception:
                if plain != MPI.COMM_NULL:
                    ulfm.revoke(plain, time.monotonic())  # the world may be revoked already
                raise
        return plain

    def between(
        self,
        over: MPI.Intracomm,
        local_leader: int,
        peer_comm: MPI.Intracomm,
        remote_leader: int,
        tag: int,
    ) -> MPI.Intercomm:
        """Make an intercommunicator, see `made`.

        No meeting takes place if the leaders know each other by a communicator that
        is not of this family: the other side may be no such program.

        Parameters
        ----------
        over : MPI.Intracomm
            The ranks of this side.
        local_leader, peer_comm, remote_leader, tag
            As for `MPI.Intracomm.Create_intercomm`.

        Returns
        -------
        MPI.Intercomm
            Of both sides.
        """

        def meet() -> None:
            over.Barrier()
            if over.rank == local_leader:
                peer_comm.Sendrecv(
                    b"", remote_leader, tag, recvbuf=bytearray(), source=remote_leader, recvtag=tag
                )
            over.Barrier()  # the other side has come too

        def make() -> MPI.Intercomm:
            return MPI.Intracomm.Create_intercomm(over, local_leader, peer_comm, remote_leader, tag)

        knows = bytearray([getattr(peer_comm, "_followed", None) is self])  # where that counts
        if ulfm.is_on():
            over.Bcast([knows, 1, MPI.BYTE], local_leader)
        return self.made(make, meet, meets=bool(knows[0]))

    def started(
        self, over: _C, start: Callable[[_C], tuple[_C, MPI.Request]]
    ) -> tuple[_C, MPI.Request]:
        """Start to duplicate a communicator; waits for no rank.

        Parameters
        ----------
        over : MPI.Comm
            The communicator.
        start : callable
            Takes it.

        Returns
        -------
        comm : MPI.Comm
            To be used once the request is through, and followed from then on.
        request : MPI.Request
            To be waited for.
        """
        if not ulfm.is_on():
            return start(over)
        # The library may write the handle later, where it is: no copy can take its place.
        comm, request = start(_ours(over))
        comm._followed = self  # type: ignore[attr-defined]
        self._hold(comm, request)
        return comm, request

    def follow(self, comm: MPI.Comm, request: MPI.Request) -> None:
        """Revoke a duplicate with the world, from its request's end on.  Local.

        Parameters
        ----------
        comm : MPI.Comm
            The duplicate.
        request : MPI.Request
            Of its making.
        """
        if ulfm.is_on():
            self._hold(comm, request)

    def _hold(self, comm: MPI.Comm, request: MPI.Request) -> None:
        self._held = [one for one in self._held if _is_there(one)]
        self._held.append(_Held(comm, request, time.monotonic()))

    def revoke(self) -> None:
        """Revoke all that the program has not freed.  Local."""
        for one in self._held:
            if _is_there(one) and one.request == MPI.REQUEST_NULL:
                ulfm.revoke(one.comm, one.born_s)

    def close(self) -> None:
        """Follow none of them any more; they stay the program's.  Local."""
        self._held = []


def _is_there(held: _Held) -> bool:
    """Whether the program has not freed it; one in the making may have no handle."""
    return held.comm != MPI.COMM_NULL or held.request != MPI.REQUEST_NULL


def _follows(make: Callable[..., MPI.Comm], *, meets: bool = True) -> Callable[..., MPI.Comm]:
    """Let a method of mpi4py's give communicators that are followed."""

    @wraps(make)
    def method(self: Any, *args: Any, **kwargs: Any) -> MPI.Comm:
        def meet() -> None:
            # The first barrier between two groups ends when the others have come.
            for _ in range(1 + self.Is_inter()):
                self.Barrier()

        followed: TrackedCommunicators = self._followed
        return followed.made(lambda: make(self, *args, **kwargs), meet, meets=meets and self._meets)

    return method


def _starts(start: Callable[..., Any]) -> Callable[..., Any]:
    """Let one that gives a request too do so."""

    @wraps(start)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        followed: TrackedCommunicators = self._followed
        return followed.started(self, lambda ours: start(ours, *args, **kwargs))

    return method


def _frees(self: MPI.Comm) -> None:
    """Free it; after a death its context id stays reserved, see `deferred_free`."""
    deferred_free.free_or_defer(self)


def _disconnects(self: MPI.Comm) -> None:
    """Free it when all its calls have ended."""
    deferred_free.free_or_defer(self, disconnects=True)


def _joins(
    self: Any, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
) -> MPI.Intercomm:
    """Make an intercommunicator, see `MPI.Intracomm.Create_intercomm`."""
    followed: TrackedCommunicators = self._followed
    return followed.between(self, local_leader, peer_comm, remote_leader, tag)


def _subclass(plain: type[MPI.Comm]) -> type[MPI.Comm]:
    """Make a subclass of one of mpi4py's, with methods that are followed."""
    # Another object of the class, made by hand, is followed by no world.
    members: dict[str, object] = {
        "__module__": __name__,
        "_followed": TrackedCommunicators(),
        "_meets": True,
    }
    for name in _MAKERS:
        if hasattr(plain, name):
            members[name] = _follows(getattr(plain, name))
    for name in ("Idup", "Idup_with_info"):
        members[name] = _starts(getattr(plain, name))
    members |= {"Free": _frees, "Disconnect": _disconnects}
    if issubclass(plain, MPI.Intracomm):
        members["Create_group"] = _follows(plain.Create_group, meets=False)
        members["Create_intercomm"] = _joins
    return type(plain.__name__, (plain,), members)


_CLASSES: Final = {
    plain: _subclass(plain)
    for plain in (MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm, MPI.Intracomm, MPI.Intercomm)
}


def _ours(comm: _C) -> _C:
    """See a communicator as one of those subclasses; the handle is the same."""
    kind = next(known for known in _CLASSES if isinstance(comm, known))
    return _CLASSES[kind](comm)  # type: ignore[return-value]
