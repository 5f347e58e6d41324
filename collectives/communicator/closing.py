"""How a communicator ends: with the others, or without them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.communicator.recoverable import Recovering
from closeranks.collectives.engine.error_translation import explaining
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.faults.final_meeting import FinalMeeting
from closeranks.collectives.plans import message_tags
from closeranks.comms.exit import exit_report, forked_child
from closeranks.comms.mpi import deferred_free, mpi_handle, ulfm
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerLate, Revoked, UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from closeranks.collectives.engine.epoch_world import World


class Closing(Recovering):
    """A communicator that is left by its ``with`` block, closed, or given up.

    The first of a family takes the whole family with it.
    """

    CALLS_IN_CHILD = frozenset({"abandon", "close", "Disconnect", "Free", "Get_rank", "Get_size"})
    _is_first: bool
    _ended = False
    _barrier: tuple[MPI.Intracomm, MPI.Request] | None = None
    _farewell: FinalMeeting | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        elif self._parent is not None:
            self._forsake(error)
        else:
            self._leave(error)

    def _finish(self) -> None:
        """Close at the end of the block; who may not is a dead rank to the others."""
        try:
            self.close()
        except Revoked as error:
            if error.for_good and self._parent is None:
                self._leave(error)
            raise

    def close(self) -> None:
        """Free this communicator; the first of a family frees the whole family.

        Collective, harmless twice, and in a child that was forked.  What is in
        flight ends first; who has the request may still wait for it.

        Raises
        ------
        PeerLate
            If other ranks do not come within the deadline of calls, or 30 s if that is
            longer; without one, within an hour, or 5 minutes on several nodes in a job
            that ends with its first dead rank.
        PeerLost, Revoked
            If ranks have died, or others have given up, see `abandon`.  Once, and at
            the end of the block for good, if an attempt has failed and was left.
        UsageError
            Of the first one, inside of an attempt (local).
        """
        if self._ended or forked_child.is_child() or self == MPI.COMM_NULL:
            return
        if self._is_first and self._family.attempt is not None:
            raise UsageError("close", "an attempt is under way, which ends by a vote of all",
                             "close it after the loop")  # fmt: skip
        self._family.refuse("close")
        try:
            if not self._given_up:  # else nobody knows who would come
                self._meet()
        except Exception as error:
            if self._parent is not None and self._family.world.revoked:
                self._forsake(error)  # else every recovery makes it again
            raise
        if self._is_first:
            if self._family.spare_pool is not None:
                self._family.spare_pool.end()  # first: nobody else is to wait if this process dies
            exit_report.note_closed_family(self.rank)
            self._family.notices.close()
            self._family.shut()
        if self._world is not None:
            if not self._is_first:
                self._family.world.disown(self._world)
            self._world.close()
        self._family.world.disown(self)
        self._release()
        self._depart()

    Free = Disconnect = close

    def _meet(self) -> None:
        """Wait for what is in flight and for all ranks, as long as closing may take."""
        world = self._family.world
        deadline = Deadline(self._family.closing_s)
        self._family.notices.check("close", self._seats)  # who has left does not come
        may_come = self._is_first and world.revoked  # the others, to the end of the job
        abort = None if may_come else partial(world.check, "close")
        with self._explaining("close"):
            waits = partial(wait, progress=engine().progress, deadline=deadline, abort=abort)
            in_time = waits(self._is_idle) and waits(self._meeting())
        if not in_time:
            raise PeerLate("close", waited_s=deadline.waited_s, limit_s=deadline.limit_s)

    def _is_idle(self) -> bool:
        """Tell whether nothing is in flight in what will be closed.

        Requests outlive the handle, as in MPI; what they use does not.
        """
        ending = tuple(self._descent()) if self._is_first else (self,)
        worlds = [one._world for one in ending if one._world is not None]
        if any(map(engine().flying_in, worlds)):
            return False
        # What the library has begun never ends where ranks have given up before.
        given_up = self._family.world.revoked or any(world.revoked for world in worlds)
        return given_up or all(one._service.outstanding.are_over() for one in ending)

    def _meeting(self) -> Callable[[], bool]:
        """Begin to meet all ranks; gives what tells whether they have come.

        Who closes again, after an interruption or a deadline, waits for the same.
        """
        world = self._world
        if world is not None and world.closed:  # by the first of the family, where all have met
            return lambda: True
        if world is None or ulfm.is_on():
            plain, begun = self._service.plain, self._barrier
            if begun is None or begun[0] is not plain or self._family.world.revoked:
                begun = self._barrier = plain, plain.Ibarrier()
            return begun[1].Test
        if self._farewell is None:
            tag = message_tags.farewell(world.window)
            self._farewell = FinalMeeting(world.traffic, tag, given_up=world.revoked)
        return partial(_have_met, world, self._farewell)

    def refuse_given_up(self, operation: str) -> None:
        """Raise `Revoked` if a rank has given the family up.

        Local; for who waits for the ranks beside calls of this communicator.

        Parameters
        ----------
        operation : str
            What would be waited for.
        """
        self._family.notices.check(operation, self._seats)

    def abandon(self) -> None:
        """Give the whole family up after an error; nobody is waited for.

        Local, harmless twice, and in a child that was forked.
        """
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        """Give up by an error, or without; others hear of it, and the launcher if it can."""
        status = exit_report.exit_status(error.code) if isinstance(error, SystemExit) else 1
        if forked_child.is_child():
            ulfm.leave_child(status)
        if self._ended or forked_child.is_child() or self == MPI.COMM_NULL:
            return
        self._family.shut()
        if error is not None or not self._family.world.revoked:
            self._family.notices.leave(error)  # else all have met what has revoked it
        self._family.world.revoke()
        self._family.world.close()
        self._release()
        ulfm.leave(status)

    def _forsake(self, error: BaseException | None = None) -> None:
        """Leave one that was derived, without the others, which are woken.

        Local, harmless twice.  What came of it is of no use to them either; where the
        library wakes nobody the whole family is given up.
        """
        if forked_child.is_child() or self == MPI.COMM_NULL:
            return
        for one in self._descent():
            one._rouse()
        if not ulfm.is_on():
            self._family.notices.leave(error)
            self._family.world.revoke()
        if self._parent is not None:
            self._parent._lineage.forsake(self)
        self._family.world.disown(self)
        deferred_free.defer_and_clear(self)
        self._service.shut()
        self._depart()

    def _be_freed(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._service.shut()
        self._family.world.disown(self)
        mpi_handle.point(self, MPI.COMM_NULL)
        self._depart()

    def _release(self) -> None:
        """Drop the handle; later calls find none."""
        self._ended = True
        if not self._family.world.revoked:
            deferred_free.free_or_defer(self)
        elif self._is_first:
            deferred_free.defer(self)
        else:
            deferred_free.defer_and_clear(self)
        self._service.shut()

    def _together(self, operation: str) -> AbstractContextManager[None]:
        """Refuse what the ranks would not all do any more; else as `_explaining`."""
        self._service.guard.refuse(operation)
        return self._explaining(operation)

    def _explaining(self, operation: str) -> AbstractContextManager[None]:
        """Tell what an error of the library means to what the ranks do together."""
        self._service.guard.refuse_shut(operation)
        return explaining(operation, self._service.plain, self._family.world)


def _have_met(world: World, farewell: FinalMeeting) -> bool:
    """Tell whether all have come; what one has given up all have.  Calls MPI."""
    if not farewell.is_over():
        return False
    if farewell.given_up:
        world.revoke()
    return True
