"""The communicator of one halo: its agreement, its messages, its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
from mpi4py import MPI

from closeranks.collectives.communicator.derived_communicators import Deriving
from closeranks.collectives.engine.error_translation import explained
from closeranks.comms import argument
from closeranks.comms.discovery.node_hardware import cores_of
from closeranks.comms.exit import forked_child
from closeranks.comms.jit import code_cache
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.comms.wait import is_crowded, wait
from closeranks.errors import Disagreement, PeerError, Revoked, Unavailable, UsageError
from closeranks.partitioning.halo.near_messages import NearMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from closeranks.collectives.communicator.membership import Membership
    from closeranks.partitioning.halo.ghost_messages import BoundMessages
    from closeranks.partitioning.halo.ghost_stage import Boxes

#: Looks for messages before what may end the wait is looked at, too: about 0.1 ms.
_BRIEF: Final = 200
_REMEDY: Final = "make a Halo of the ranks that are there now"
#: What requests that were given up may still write to or read from; a few arrays at most.
_UNFINISHED: Final[list[object]] = []


def check_comm(comm: object) -> None:
    """Refuse what is no communicator of one group.  Local.

    Parameters
    ----------
    comm : object
        As given.

    Raises
    ------
    UsageError
        If it is none.
    """
    argument.instance("Halo", "comm", comm, MPI.Intracomm, "give a communicator")
    if comm == MPI.COMM_NULL:
        raise UsageError("Halo", "comm is MPI.COMM_NULL", "give a communicator")


def agree(
    comm: MPI.Intracomm, operation: str, problem: UsageError | None, digest: int, said: str
) -> None:
    """Raise on all ranks what one rank cannot use, or that they do not mean the same.

    Collective: one all-reduce of three numbers.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    operation : str
        The call, for the text of an error.
    problem : UsageError or None
        What is wrong on this rank.
    digest : int
        Equal where ranks mean the same; less than ``2**53``.
    said : str
        What this rank means, for readers.

    Raises
    ------
    UsageError
        On all ranks, if any has a problem, or they differ.
    Disagreement
        In place of it, on a communicator that checks, if they differ.
    """
    size, rank = comm.Get_size(), comm.Get_rank()
    mine = np.array([0 if problem is None else size - rank, digest, -digest], np.float64)
    most = np.empty_like(mine)
    comm.Allreduce(mine, most, MPI.MAX)
    if most[0]:
        first = size - int(most[0])
        told = comm.bcast(problem and (problem.problem, problem.remedy), first)
        raise problem or UsageError(operation, f"rank {first}: {told[0]}", told[1])
    if problem is None and most[1] != -most[2]:
        if getattr(comm, "checks", False):
            raise Disagreement(operation, dict(enumerate(comm.allgather(said))))
        problem_of_all = f"the ranks do not pass the same; this one: {said}"
        raise UsageError(operation, problem_of_all, "pass the same on every rank")


def _near(
    node: MPI.Intracomm,
    ranks: Sequence[int],
    received: Sequence[Boxes],
    sent: Sequence[Boxes],
    *,
    spins: bool = True,
) -> NearMessages | None:
    """Make what carries messages inside a node, unless its memory is full."""
    try:
        return NearMessages(node, ranks, received, sent, spins=spins and not is_crowded())
    except Unavailable:
        return None


class HaloTraffic:
    """A communicator that carries the messages of one halo and nothing else.

    Collective to make and to close.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; their own messages never meet those of the halo.

    Attributes
    ----------
    comm : MPI.Intracomm
        Carries the messages; mpi4py's own.
    checks : bool
        Whether what ranks pass is compared, see `closeranks.init`.
    is_broken : bool
        Whether an exchange has failed.
    number : int
        Tells this halo from all others of its ranks, if `checks`; the same on
        every rank.
    """

    #: The highest number of a halo of this process.
    _highest = 0

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._given, self.is_broken, self._hears = comm, False, ulfm.is_on()
        self._is_crowded = False  # beyond what the wait knows of communicators of ours
        self.checks = bool(getattr(comm, "checks", False))
        self.number = 0
        if self.checks:
            highest: int = comm.allreduce(HaloTraffic._highest, MPI.MAX)
            self.number = HaloTraffic._highest = highest + 1
        self._membership: Membership | None = None
        if isinstance(comm, Deriving):
            self._membership = comm.membership
            self._world = self._membership.family.world
            self.comm = self._duplicate(comm)
        else:
            self.comm = comm.Dup()
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)

    def near(self, received: Sequence[Boxes], sent: Sequence[Boxes]) -> NearMessages | None:
        """Give what carries messages inside the node; None where there is nothing.

        Collective.  Node memory does not tell that a rank has died.  The world of a
        communicator of ours does; others have messages only, if ranks may die.

        Parameters
        ----------
        received, sent : sequence of (int, list of boxes)
            Peer -> boxes.

        Returns
        -------
        NearMessages or None
            The same on all ranks of a node.
        """
        membership = self._membership
        if membership is None:
            return None if self._hears else self._near_of_others(received, sent)
        with membership.explaining("Halo"):
            world = membership.world
            if world.node.size == 1 or not world.kernels:
                return None
            return _near(world.node, world.node_ranks, received, sent)

    def _near_of_others(
        self, received: Sequence[Boxes], sent: Sequence[Boxes]
    ) -> NearMessages | None:
        """Give the same for a communicator that is mpi4py's own."""
        node = split_by_node(self.comm)
        try:
            self._is_crowded = node.size > cores_of(node)
            if node.size == 1 or not all(node.allgather(code_cache.is_possible())):
                return None
            return _near(
                node, ranks_in(node, self.comm), received, sent, spins=not self._is_crowded
            )
        finally:
            node.Free()

    def _duplicate(self, comm: Deriving) -> MPI.Intracomm:
        """Make one that is revoked with the family, and that no recovery makes again."""
        made, request = comm.start_plain()
        self._wait("Halo", lambda: request.Test(), made)
        comm.Barrier()  # where a rank has none, it could not be revoked there
        return made

    def refuse(self, operation: str) -> None:
        """Raise if messages can have no right end any more.  Local.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.

        Raises
        ------
        Revoked
            If the ranks are others now, or an exchange has failed.
        UsageError
            In a forked child.
        """
        membership = self._membership
        if membership is None:
            forked_child.refuse_in_child(operation)
        elif membership.family.world is not self._world:
            problem = "the ranks are others since a recovery"
            raise Revoked(operation, (), problem, _REMEDY, for_good=True)
        else:
            membership.service.guard.refuse(operation)
        if self.is_broken:
            raise Revoked(operation, (), "an exchange has failed before", _REMEDY, for_good=True)

    def check(self, operation: str, problem: UsageError | None, said: str) -> None:
        """Raise on all ranks what is wrong with an array, or that calls differ.

        Collective; for a communicator that `checks`.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.
        problem : UsageError or None
            What is wrong on this rank.
        said : str
            The call, the elements of its array and the halo.

        Raises
        ------
        UsageError
            If there is a problem.
        Disagreement
            If ``said`` differs.
        """
        agree(self._given, operation, problem, crc32(said.encode()), said)

    def keep(self, array: NDArray[Any]) -> None:
        """Let an attempt that is under way restore an array if it fails.  Local.

        Parameters
        ----------
        array : ndarray
            Is about to be changed.
        """
        if self._membership is not None:
            self._membership.keep((array,))

    def start(self, operation: str, requests: Sequence[MPI.Prequest]) -> None:
        """Start persistent requests.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.
        requests : sequence of MPI.Prequest
            None is under way.
        """
        if requests:
            try:
                MPI.Prequest.Startall(requests)  # type: ignore[arg-type]
            except MPI.Exception as error:
                raise self._explained(operation, error) from error

    def complete(self, operation: str, messages: BoundMessages, dtype: np.dtype[Any]) -> None:
        """Wait for messages that were started.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.
        messages : BoundMessages
            All of one start.
        dtype : dtype
            Elements of the array.

        Raises
        ------
        UsageError
            If another rank's elements are of another type (local).
        PeerLost, Revoked
            If ranks have died or given up.
        """
        try:
            self._await_all(operation, messages.requests, messages.statuses)
        except MPI.Exception as error:
            other = messages.other_kind()
            if other is not None:  # its message was too long
                self.raise_other_kind(operation, other, dtype)
            raise self._explained(operation, error) from error
        for status, peer in messages.received:
            if status.tag != messages.kind and status.tag != MPI.ANY_TAG:
                self.raise_other_kind(operation, peer, dtype)

    def _await_all(
        self, operation: str, requests: list[MPI.Prequest], statuses: list[MPI.Status]
    ) -> None:
        """Wait for requests; errors of the library pass."""
        is_done = MPI.Request.Testall
        if self._membership is None:
            MPI.Request.Waitall(requests, statuses)
            return
        if is_done(requests, statuses):
            return
        for _ in range(0 if is_crowded() else _BRIEF):
            if is_done(requests, statuses):
                return
        self._wait(operation, lambda: is_done(requests, statuses), self.comm, translated=False)

    def raise_other_kind(self, operation: str, peer: int, dtype: np.dtype[Any]) -> None:
        """Raise that ranks pass arrays of different types.  Local.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.
        peer : int
            A rank with another type.
        dtype : dtype
            This rank's.

        Raises
        ------
        UsageError
            Always.
        """
        self.is_broken = True
        problem = f"elements are {dtype} here, and of another type on rank {peer}"
        raise UsageError(operation, problem, "pass arrays of one dtype on every rank")

    def wait(self, operation: str, ready: Callable[[], bool]) -> None:
        """Wait for other ranks, which send no message.

        The library makes progress meanwhile: what was sent before may be on its way.

        Parameters
        ----------
        operation : str
            The call, for the text of an error.
        ready : callable
            Whether the wait is over.

        Raises
        ------
        PeerLost, Revoked
            If ranks have died or given up.
        """
        self._wait(operation, ready, self.comm, progress=ulfm.listen)

    def _wait(
        self,
        operation: str,
        ready: Callable[[], bool],
        comm: MPI.Intracomm,
        progress: Callable[[], bool] | None = None,
        *,
        translated: bool = True,
    ) -> None:
        """Wait for requests of a communicator; a rank that gives up ends the wait."""
        abort = None if self._membership is None else lambda: self._abort(operation, comm)
        try:
            if not ready():
                wait(ready, progress=progress, abort=abort, polite=self._is_crowded)
        except MPI.Exception as error:
            if not translated:
                raise
            raise self._explained(operation, error) from error
        except PeerError:
            self.is_broken = True
            raise

    def _abort(self, operation: str, comm: MPI.Intracomm) -> None:
        """Raise what has ended the wait for others, if anything has."""
        membership = self._membership
        assert membership is not None
        self._world.look()
        self._world.check(operation)
        if membership.opened is not None:
            membership.opened.check(operation)
        if self._hears and comm != MPI.COMM_NULL and comm.Is_revoked():
            raise Revoked(operation)

    def _explained(self, operation: str, error: MPI.Exception) -> Exception:
        """Say what an error of the library means; the halo is of no use after it."""
        self.is_broken = True
        if self._membership is None:
            return error
        return explained(operation, self._membership.service.plain, self._world, error)

    def abandon(self, *used: object) -> None:
        """Give up without the others; what messages may still use stays alive.  Local.

        Parameters
        ----------
        *used : object
            Arrays and requests that may be under way.
        """
        self.is_broken = True
        _UNFINISHED.extend(used)
        if self._hears and self.comm != MPI.COMM_NULL:
            self.comm.Free()  # local there, and put off if ranks have died

    def close(self) -> None:
        """Free the communicator.  Collective, unless it is of no use."""
        if self._hears or not self.is_broken:
            self.comm.Free()
