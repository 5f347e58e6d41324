"""Recovery: the communicators of one `init` go on without ranks that have died.

A rank is a number in a communicator and may change; a seat stays.  Of four
members and one spare, the rank in seat 2 dies::

    epoch 0                 rank    0    1    2    3
                            seat    0    1    2    3     spare
                                    |    |    X    |       |
                                    v    v         v       |
    on_failure="shrink",    rank    0    1         2       |  (no spares
    epoch 1                 seat    0    1         3       |   there)
                                                           |
                                              +------------+
                                              v
    on_failure="replace",   rank    0    1    2    3
    epoch 1                 seat    0    1    2    3
                                              newcomer

The members vote at the end of an attempt (`Recovery.vote`).  If it is to be
repeated, `Recovery.recover` makes the next world: it shrinks the communicator
of all processes, gives vacant seats to spares, derives all communicators of
the program again, and moves them to the new ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.error_translation import NEWS_S, may_blame
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.faults.attempts import Attempt, attempts, words_of
from closeranks.collectives.faults.rank_assignment import (
    ProcessReport,
    RankAssignment,
    assign_seats,
)
from closeranks.collectives.faults.spares import placed, reported, split
from closeranks.collectives.faults.survivor_creation import JoinMessage, together
from closeranks.collectives.faults.votes import AGAIN, AGREED, UNBEGUN, Outcome, outcome_of
from closeranks.collectives.shm import shared_arrays
from closeranks.comms import argument
from closeranks.comms.exit import exit_report
from closeranks.comms.exit.hard_deadline import HardDeadline
from closeranks.comms.liveness.agreement import agree
from closeranks.comms.liveness.collective_creation import all_or_none, limit_patience
from closeranks.comms.liveness.recovery_allgather import bcast
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.interruption import Interruption
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import Error, PeerLost, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.faults.survivor_creation import Recoverable
    from closeranks.collectives.selection.findings import TrialFindings


#: How long the votes of others may come after the news that one of them has failed, seconds.
_GRACE_S: Final = 1.0


class VoteCounter:
    """Counts the votes of a world's members without ULFM.

    The MPI library tells no rank of a death there.  Collective to make.

    Parameters
    ----------
    world : World
        Owns the communicator of the votes, which no other call uses.
    """

    def __init__(self, world: World) -> None:
        self._world, self._comm = world, world.own(world.comm.Dup())
        #: Kept: the library may still write a vote that has not ended.
        self._unfinished: list[tuple[MPI.Request, object]] = []

    def count(self, vote: int, waits: Callable[..., bool]) -> int:
        """Vote; the wait for the others is short.

        Collective.  A rank that agrees, and hears that another rank does not, hears
        no more: the error of the other rank is not known here.

        Parameters
        ----------
        vote : int
            The vote of this rank.
        waits : callable
            As `closeranks.comms.wait.wait`.

        Returns
        -------
        int
            The bits that all have set, or the own vote.
        """
        world, votes = self._world, np.array([vote])
        if vote != AGREED:
            engine().end_revoked()
        request = self._comm.Iallreduce(MPI.IN_PLACE, votes, MPI.BAND)
        self._unfinished.append((request, votes))
        if vote == AGREED:
            waits(lambda: request.Test() or world.revoked, progress=engine().progress)
        over = waits(request.Test, deadline=Deadline(_GRACE_S if vote == AGREED else NEWS_S))
        if over:
            self._unfinished.pop()
        if vote != AGREED:
            return vote
        if over and votes[0] == AGREED:
            return AGREED
        world.revoke()
        return AGAIN


#: So many attempts in a row that fail without a loss are the fault of their body.
FRUITLESS: Final = 10


class _Next(NamedTuple):
    """The next world, made in the place of one that was revoked."""

    whole: MPI.Intracomm
    seated: RankAssignment
    world: World
    derived: list[tuple[Recoverable, MPI.Intracomm | None]]
    heritage: dict[Agreed, str]
    findings: dict[str, TrialFindings]

    def drop(self) -> None:
        """Let go of a world that was made in vain.  Local."""
        self.world.drop()


class _Told(NamedTuple):
    """Reports of the errors by which members leave."""

    reports: list[ProcessReport]

    def drop(self) -> None:
        """Do nothing."""


class Recovery:
    """Lets the communicators of one `init` go on after ranks have died.

    Parameters
    ----------
    root : Recoverable
        The membership of the first communicator of the family.
    family : Family
        The state that all of them share.
    on_failure : str
        "raise": they do not go on; "shrink": with the survivors; "replace": with
        spares in the vacant seats.
    limit_s : float
        Limit of a recovery, seconds; then the process ends with status 75.
    start_s : float
        Seconds from the start of the program to `init`; new processes take it
        again.
    abandon : callable
        Gives the family up after an error.  Local.

    Collective to make where the MPI library notices no deaths.
    """

    def __init__(
        self,
        root: Recoverable,
        family: Family,
        on_failure: str,
        limit_s: float,
        start_s: float,
        *,
        abandon: Callable[[], None],
    ) -> None:
        self._root, self._family, self._abandon = root, family, abandon
        self._on_failure, self._limit_s, self._start_s = on_failure, limit_s, start_s
        limit_patience(limit_s)
        self._cause: tuple[int, str] | None = None
        self._loop: object = None
        self._vote_counter = None if ulfm.is_on() else VoteCounter(family.world)

    def attempts(self, limit: int | None, min_ranks: int, *, restores: bool) -> Iterator[Attempt]:
        """Give attempts until one is agreed, see `attempts`."""
        if limit is not None:
            limit = argument.whole("attempts", "limit", limit, least=1)
        min_ranks = argument.whole("attempts", "min_ranks", min_ranks)
        return attempts(self, limit, min_ranks, restores=restores)

    @property
    def comm(self) -> MPI.Intracomm:
        """All members."""
        return self._family.world.comm

    @property
    def size(self) -> int:
        """How many members there are."""
        return self._family.world.size

    @property
    def number(self) -> int:
        """Number of the next attempt; the same on all members."""
        return self._family.failed + 1

    @property
    def lost(self) -> tuple[int, ...]:
        """Seats that the attempt before has cost; the same on all members."""
        return self._family.lost

    @property
    def is_fruitless(self) -> bool:
        """Whether attempts fail again and again; the same on all members."""
        return self._family.fruitless >= FRUITLESS

    def begin(self, attempt: Attempt) -> None:
        """Let an attempt begin.  Local."""
        self.check_alone()
        self._family.begin(attempt)
        self._reach("begin")

    def _reach(self, point: str) -> None:
        """Inject the faults that a schedule has here."""
        if self._family.faults is not None:
            self._family.faults.reach(point)

    def check_alone(self) -> None:
        """Refuse an attempt inside of another one.  Local."""
        if self._family.attempt is not None:
            raise UsageError("attempts", "an attempt inside of another one",
                             "repeat the outer one as a whole")  # fmt: skip

    def end(self) -> None:
        """Let the attempt be over.  Local."""
        self._family.end()

    def vote(
        self,
        vote: int,
        error: BaseException | None,
        mark: Callable[[str], object] = len,
        waits: Callable[..., bool] = wait,
    ) -> Outcome:
        """Agree on how an attempt has ended.

        Collective over all members; one agreement where it has ended well.

        Parameters
        ----------
        vote : int
            The vote of this rank.
        error : BaseException or None
            The error that has ended it here.
        mark : callable
            Called when the world is "revoked" and the members have "agreed".
        waits : callable
            Waits for the others, as `closeranks.comms.wait.wait`.

        Returns
        -------
        Outcome
            Of the bits that all members have agreed on; where the library cannot
            agree, of the own vote.  If the member that voted to leave has died before
            it told its error, `Outcome.REPEAT`.
        """
        world = self._family.world
        if vote == AGREED and world.revoked:
            vote = AGAIN  # the body has caught the error
        if vote != AGREED:
            world.revoke()
        mark("revoked")
        self._reach("vote")
        outcome = self._outcome(vote, waits)
        self._family.settle(agreed=outcome is Outcome.END)
        if outcome is Outcome.END and self._family.spare_pool is not None:
            self._family.spare_pool.settle()
        mark("agreed")
        self._reach("voted")
        if outcome is Outcome.END or not ulfm.is_on():
            return outcome
        world.revoke()
        with self.last_resort():
            engine().end_revoked()
            if outcome.leaves:
                self._cause = self._told(error if outcome is Outcome.LEAVE else None)
                if self._cause is None:  # the rank that voted to leave has died
                    return Outcome.REPEAT
        return outcome

    def _outcome(self, vote: int, waits: Callable[..., bool]) -> Outcome:
        """Agree with the other members, or count their votes."""
        world = self._family.world
        if self._vote_counter is not None:
            return outcome_of(vote, self._vote_counter.count(vote, waits))
        agreed, died = agree(world.comm, vote, on_wait=world.look, waits=waits)
        return outcome_of(vote, agreed, died=died)

    def _told(self, error: BaseException | None) -> tuple[int, str] | None:
        """Tell the others the error of this rank; give the first error that was told."""
        world, cause = self._family.world, None if error is None else words_of(error)
        report = ProcessReport(world.seats[world.rank], cause, tells=True)
        said = together(self._base, lambda whole: _Told(reported(whole, report))).reports
        causes = ((one.seat, one.cause) for one in said if one.seat is not None and one.cause)
        return next(causes, None)

    @property
    def _base(self) -> MPI.Intracomm:
        """All processes that may live."""
        spare_pool = self._family.spare_pool
        return self._family.world.comm if spare_pool is None else spare_pool.everybody

    def aborted(self) -> PeerLost:
        """Give the error of the others when a rank leaves by an exception.  Local."""
        assert self._cause is not None
        seat, text = self._cause
        rank = self._family.world.seats.index(seat)
        return PeerLost("attempts", [rank], seats=[seat], cause=text, remedy="see what it met")

    def recover(self, error: Exception | None, *, begun: bool = True) -> None:
        """Go on with the surviving members.

        Collective over them, after a vote whose outcome goes on.

        Parameters
        ----------
        error : Exception or None
            The error that has ended the attempt here, for ``on_failure="raise"``.
        begun : bool
            Whether any member had begun it.

        Raises
        ------
        PeerError, MPI.Exception
            If ``on_failure`` is "raise".
        """
        family = self._family
        if self._on_failure == "raise":
            raise error or family.world.verdict("attempts")
        family.failed += begun
        family.before, family.came = family.world.seats, set()
        with self.last_resort():
            self._reach("shrink")
            self._go_on(family.world.epoch + 1)
        self.fill()
        # From here on this rank reports for the group, not one that gave up before.
        exit_report.enter_world(self.comm.rank, family.world.epoch, family.group)
        with self.last_resort():
            self._arm()
        family.fruitless = 0 if family.lost or family.came else family.fruitless + 1

    def fill(self) -> None:
        """Start processes for vacant seats, where that is possible.

        Collective over the members of a world that has just begun, newcomers too.
        The members go on whether or not a new process comes.
        """
        family = self._family
        if family.spare_pool is None:
            return
        with self.last_resort(2 * self._start_s if family.spare_pool.recruits else 0):
            while family.spare_pool.enlist(family.seats - family.world.size, self._limit_s):
                family.world.revoke()
                self._go_on(family.world.epoch)

    def _arm(self) -> None:
        """Let the first calls on derived communicators have deadlines, too.

        Collective.  If a rank fails here, the next attempt finds out.
        """
        if self._family.timeout_s is None:
            return
        try:
            for one in self._root.descent():
                if one is not self._root and one.comm != MPI.COMM_NULL:
                    one.world.arm()
        except Exception as error:
            if not may_blame(error, self.comm):
                raise
            self._family.world.revoke()

    def _go_on(self, epoch: int) -> None:
        """Make the next world and go on in it."""
        self._take(together(self._base, lambda whole: self._made(whole, epoch)))

    def catch_up(self) -> None:
        """Recover from failures before the loop.

        Collective if the world is revoked.  Other ranks may have begun without this
        rank, which then has missed the first attempt.
        """
        self._root.refuse_shut("attempts")
        self._family.refuse("attempts")
        if self._family.faults is not None:
            self._family.faults.next_step()
        if not self._family.world.revoked:
            return
        interruption = Interruption()
        try:
            outcome = self.vote(UNBEGUN, None, waits=interruption.wait)
            if outcome.leaves:
                raise self.aborted()
            self.recover(None, begun=outcome is not Outcome.REPEAT_UNBEGUN)
        except BaseException as met:
            self.note(met)
            raise
        if interruption.error is not None:
            self.leave()
            raise interruption.error

    def note(self, met: BaseException, known: BaseException | None = None) -> None:
        """Give the family up for an error that the members did not agree on.  Local.

        The others may go on, and wait for this rank until its process ends.  It must
        not go on with them without knowing their outcome.
        """
        if met is not known and not isinstance(met, Error):
            self._abandon()

    def leave(self, left: bool = True) -> None:
        """Refuse calls after an attempt that has failed, until it is repeated.  Local."""
        self._family.left = left

    def start(self) -> object:
        """Let a loop begin; ends one that was left and not dropped.  Local."""
        self.finish(self._loop)
        self._loop = object()
        return self._loop

    def finish(self, loop: object) -> None:
        """Let a loop be over, if it is the last one that has begun.  Local."""
        if loop is not None and loop is self._loop:
            self._loop = None
            self._family.failed = self._family.fruitless = 0
            self._family.before = ()

    def _made(self, whole: MPI.Intracomm, epoch: int) -> _Next:
        """Make the next world; collective over all living processes."""
        self._reach("rebuild")
        old, family = self._family.world, self._family
        reports = reported(whole, ProcessReport(old.seats[old.rank]))
        seated = assign_seats(reports, family.seats if self._on_failure == "replace" else 0)
        plain = split(whole, reports, seated)
        assert plain is not None, "a member keeps its seat"

        def told() -> JoinMessage:
            root = self._root
            facts = (
                JoinMessage.of(family, root.chooser, epoch)
                if plain.rank == seated.first_survivor
                else None
            )
            taken: JoinMessage = bcast(plain, facts, seated.first_survivor)
            return taken

        facts = all_or_none(plain, told)

        def world_of() -> World:
            if seated.joined:
                topology = placed(plain, facts, seated.seats)
            else:
                topology = old.topology.restrict(ranks_in(plain, old.comm))
            return World(epoch, plain, topology, seats=seated.seats)

        world = all_or_none(plain, world_of, World.drop)
        try:
            derived = self._root.lineage.again(plain)
        except Exception:
            world.drop()
            raise
        return _Next(whole, seated, world, derived, facts.known, facts.findings)

    def _take(self, made: _Next) -> None:
        """Let every communicator of the family go on.  Local."""
        self._reach("move")
        old, family, world = self._family.world, self._family, made.world
        family.world, topology = world, world.topology
        family.seat_newcomers(family.newcomers, made.seated.joined)
        family.came |= set(made.seated.joined)
        family.findings = made.findings  # those of one survivor, for newcomers too
        if family.timeout_s is not None:
            world.attendance.open()
        if family.spare_pool is not None:
            family.spare_pool.take(made.whole, made.seated)
            world.own(family.spare_pool)
        self._root.move(world.comm, topology, world.seats, world=world, heritage=made.heritage)
        for child, plain in made.derived:
            if plain is None:
                child.give_up()
                continue
            if child.comm == MPI.COMM_NULL:  # freed: it was made for what came of it
                world.own(plain)
                continue
            ranks = ranks_in(plain, world.comm)
            seats = tuple(world.seats[rank] for rank in ranks)
            child.move(plain, topology.restrict(ranks), seats)
            world.own(child.comm)
        exit_report.note_processes(made.whole.size)
        old.close()
        shared_arrays.release_lost(old.comm, made.whole)

    def last_resort(self, more_s: float = 0) -> HardDeadline:
        """Bound a part of a recovery: the process ends if it takes longer.  Local."""
        world, limit_s = self._family.world, self._limit_s + more_s
        who = f"closeranks: rank {world.rank} (seat {world.seats[world.rank]}): the recovery of"
        what = f" epoch {world.epoch} has not ended after {limit_s:.4g} s; exit status 75, relaunch"
        return HardDeadline(limit_s, who + what)
