"""How a communicator ends: with the others, or without them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.faults.final_meeting import FinalMeeting
from closeranks.collectives.plans import message_tags
from closeranks.comms.exit import exit_report, forked_child
from closeranks.comms.mpi import ulfm
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerLate, Revoked, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.communicator.membership import Membership
    from closeranks.collectives.engine.epoch_world import World


class Closing:
    """The end of one communicator; the first of a family takes all others with it.

    Parameters
    ----------
    membership : Membership
        Its members.

    The methods take the handle by which the program ends it, and let it stand for
    no communicator afterwards.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._barrier: tuple[MPI.Intracomm, MPI.Request] | None = None
        self._farewell: FinalMeeting | None = None

    def finish(self, handle: Communicator) -> None:
        """Close at the end of the block; who may not is a dead rank to the others."""
        try:
            handle.close()
        except Revoked as error:
            if error.for_good and self._membership.parent is None:
                self.leave(handle, error)
            raise

    def leave_block(self, handle: Communicator, error: BaseException | None) -> None:
        """Give up what the block was for: the family, or one that was derived alone."""
        if self._membership.parent is None:
            self.leave(handle, error)
        else:
            self._membership.forsake(handle, error)

    def close(self, handle: Communicator) -> None:
        """Free it when all ranks have come, see `Communicator.close`."""
        membership, family = self._membership, self._membership.family
        if membership.has_ended:
            return
        if membership.is_first and family.attempt is not None:
            raise UsageError("close", "an attempt is under way, which ends by a vote of all",
                             "close it after the loop")  # fmt: skip
        family.refuse("close")
        try:
            if not membership.is_given_up:  # else nobody knows who would come
                self._meet()
        except Exception as error:
            if membership.parent is not None and family.world.revoked:
                membership.forsake(handle, error)  # else every recovery makes it again
            raise
        is_orderly = membership.is_first and not (membership.is_given_up or family.world.revoked)
        if membership.is_first:
            self._shut_family()
        if not membership.is_first:
            membership.shut_world()
        elif membership.opened is not None:
            membership.opened.close()
        family.world.disown(membership.comm)
        membership.release(handle)
        membership.depart()
        if is_orderly:
            family.remember()  # last: nobody waits for this rank's disk

    def _shut_family(self) -> None:
        """Let the family be over; all its ranks have met."""
        family = self._membership.family
        if family.spare_pool is not None:
            family.spare_pool.end()  # first: nobody else is to wait if this process dies
        exit_report.note_closed_family(self._membership.service.rank)
        family.notices.close()
        family.shut()

    def _meet(self) -> None:
        """Wait for what is in flight and for all ranks, as long as closing may take."""
        membership, world = self._membership, self._membership.family.world
        deadline = Deadline(membership.family.closing_s)
        membership.refuse_given_up("close")  # who has left does not come
        may_come = membership.is_first and world.revoked  # the others, to the end of the job
        abort = None if may_come else partial(world.check, "close")
        with membership.explaining("close"):
            waits = partial(wait, progress=engine().progress, deadline=deadline, abort=abort)
            in_time = waits(self._is_idle) and waits(self._meeting())
        if not in_time:
            raise PeerLate("close", waited_s=deadline.waited_s, limit_s=deadline.limit_s)

    def _is_idle(self) -> bool:
        """Tell whether nothing is in flight in what will be closed.

        Requests outlive the handle, as in MPI; what they use does not.
        """
        membership = self._membership
        ending = tuple(membership.descent()) if membership.is_first else (membership,)
        worlds = [one.opened for one in ending if one.opened is not None]
        if any(map(engine().flying_in, worlds)):
            return False
        # What the library has begun never ends where ranks have given up before.
        given_up = membership.family.world.revoked or any(world.revoked for world in worlds)
        return given_up or all(one.service.outstanding.are_over() for one in ending)

    def _meeting(self) -> Callable[[], bool]:
        """Begin to meet all ranks; gives what tells whether they have come.

        Who closes again, after an interruption or a deadline, waits for the same.
        """
        membership, world = self._membership, self._membership.opened
        if world is not None and world.closed:  # by the first of the family, where all have met
            return lambda: True
        if world is None or ulfm.is_on():
            plain, begun = membership.service.plain, self._barrier
            if begun is None or begun[0] is not plain or membership.family.world.revoked:
                begun = self._barrier = plain, plain.Ibarrier()
            return begun[1].Test
        if self._farewell is None:
            tag = message_tags.farewell(world.window)
            self._farewell = FinalMeeting(world.traffic, tag, given_up=world.revoked)
        return partial(_have_met, world, self._farewell)

    def leave(self, handle: Communicator, error: BaseException | None = None) -> None:
        """Give up by an error, or without; others hear of it, and the launcher if it can."""
        status = exit_report.exit_status(error.code) if isinstance(error, SystemExit) else 1
        if forked_child.is_child():
            ulfm.leave_child(status)
        membership, family = self._membership, self._membership.family
        if membership.has_ended or forked_child.is_child() or handle == MPI.COMM_NULL:
            return
        family.shut()
        if error is not None or not family.world.revoked:
            family.notices.leave(error)  # else all have met what has revoked it
        family.world.revoke()
        family.world.close()
        membership.release(handle)
        ulfm.leave(status)


def _have_met(world: World, farewell: FinalMeeting) -> bool:
    """Tell whether all have come; what one has given up all have.  Calls MPI."""
    if not farewell.is_over():
        return False
    if farewell.given_up:
        world.revoke()
    return True
