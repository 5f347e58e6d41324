"""Spares: processes that wait until a seat is vacant."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpi4py import MPI

from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.faults.rank_assignment import (
    ProcessReport,
    RankAssignment,
    assign_seats,
    is_over,
)
from closeranks.collectives.faults.respawn import recruit
from closeranks.collectives.faults.survivor_creation import Lineage, together
from closeranks.comms.discovery.discovery import discover
from closeranks.comms.exit import exit_report
from closeranks.comms.liveness.collective_creation import all_or_none, limit_patience
from closeranks.comms.liveness.peer_watch import peers
from closeranks.comms.liveness.recovery_allgather import allgather, bcast
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.comms.wait import LONGEST_S, wait

if TYPE_CHECKING:
    from closeranks.collectives.faults.survivor_creation import JoinMessage
    from closeranks.comms.topology.topology import Topology

#: How often all spares together may fall asleep in a second, and how long one may sleep.
_NAPS_PER_S: Final = 1000
_LONGEST_NAP_S: Final = 0.05
#: Tag of the message that ends spares, and how many members send it: some may die.
_HOME: Final = 1
_SENDERS: Final = 3


class SparePool:
    """All processes of a job: the members, and spares that wait.

    Collective over ``everybody`` to make.

    Parameters
    ----------
    everybody : MPI.Intracomm
        All of them, the members first.
    spares : int
        How many wait.
    seats : int, optional
        Number of members in the first world; default: the members here.
    recruits : bool
        Whether new processes may be started.

    Attributes
    ----------
    everybody : MPI.Intracomm
        All processes of the last world, and the spares.
    seats, recruits
        As given.
    """

    def __init__(
        self,
        everybody: MPI.Intracomm,
        spares: int,
        *,
        seats: int | None = None,
        recruits: bool = False,
    ) -> None:
        self.recruits, self._is_new = recruits, seats is not None
        self._sent: list[MPI.Request] = []
        self._vain = 0
        self._meet(everybody, tuple(range(everybody.size - spares)))
        self.seats = len(self._members) if seats is None else seats

    def _meet(self, everybody: MPI.Intracomm, members: tuple[int, ...]) -> None:
        """Note the living processes: members, and spares that wait.  Local."""
        self.everybody, self._members = everybody, members
        self._spares = sorted(set(range(everybody.size)) - set(members))

    @property
    def is_spare(self) -> bool:
        """Whether this process has no seat."""
        return self.everybody.rank not in self._members

    def take(self, whole: MPI.Intracomm, seated: RankAssignment) -> None:
        """Go on with the survivors.  Local."""
        deferred_free.defer(self.everybody)
        self._meet(whole, tuple(seated.seat_of))

    def enlist(self, vacant: int, limit_s: float) -> bool:
        """Start new processes, which wait like spares.

        Collective over ``everybody``, members all.

        Parameters
        ----------
        vacant : int
            How many seats are.
        limit_s : float
            Deadline of the recovery, seconds.

        Returns
        -------
        bool
            Whether they are there, the same on all members.
        """
        if not self.recruits or not vacant:
            return False
        if self.everybody.rank == 0:  # it starts them
            peers().wait_for_ending(limit_s)
        whole = recruit(self.everybody, vacant, self.seats, vain=self._vain)
        if whole is None:
            return False
        self._vain += 1
        deferred_free.defer(self.everybody)
        self._meet(whole, self._members)
        return True

    def settle(self) -> None:
        """Note that an attempt was agreed: no process came in vain.  Local."""
        self._vain = 0

    def revoke(self) -> None:
        """Wake the spares: a world has been given up.  Local."""
        ulfm.revoke(self.everybody)

    def close(self) -> None:
        """Do nothing: the pool outlives worlds, `end` ends it."""

    def end(self) -> None:
        """End the spares, or end without them; again when the process ends.

        Local, harmless twice.  Spares that were woken because a world was given up
        wait for all members: a member that takes no part in a recovery must be dead.
        """
        if not self._spares or MPI.Is_finalized():
            return  # without spares ``everybody`` is that of the members, or gone
        if not ulfm.is_revoked(self.everybody):
            self._send_home()
        elif not ulfm.leaves():
            ulfm.leave()
        deferred_free.defer(self.everybody)

    def _send_home(self) -> None:
        """Tell the spares that the job is over, as one of the first.  Local."""
        gone = set(ulfm.failed(self.everybody))
        first = [rank for rank in self._members if rank not in gone][:_SENDERS]
        if self._sent or self.everybody.rank not in first:
            return
        for rank in self._spares:
            with suppress(MPI.Exception):  # it has died, or others have just given up
                self._sent.append(self.everybody.Isend([None, 0, MPI.BYTE], rank, _HOME))

    def wait_for_seat(self, limit_s: float) -> SpareSeat:
        """Wait until a seat is free.

        Collective over the spares and, when ranks have died, over all survivors.

        Parameters
        ----------
        limit_s : float
            Deadline of a recovery, seconds.

        Returns
        -------
        SpareSeat
            Of this process, from now on.

        Raises
        ------
        SystemExit
            When the job ends: with 0, or with 1 where no member has ended well.
        """
        limit_patience(limit_s)
        while True:
            wait(self._is_called, progress=ulfm.listen, polite=True,
                 longest_s=longest_nap_s(len(self._spares)), doze=peers().doze)  # fmt: skip
            seat = together(self.everybody, lambda whole: self._seat(whole, limit_s))
            if seat.left:
                ulfm.leave()  # a rank that goes on nevertheless must not wait for this process
                raise SystemExit(1)
            if seat.seated is None:  # no member has reported an error: the others go on
                continue
            self.take(seat.whole, seat.seated)
            exit_report.note_processes(seat.whole.size)
            if seat.world is not None:
                return seat

    def _is_called(self) -> bool:
        """Whether members have to be replaced; leaves when the job is over."""
        if ulfm.is_revoked(self.everybody):
            return True
        try:
            is_over = self.everybody.Iprobe(MPI.ANY_SOURCE, _HOME)
        except MPI.Exception as error:
            if not ulfm.speaks_of_failure(error, self.everybody):
                raise
            self.everybody.Ack_failed()  # others may still have something to say
            is_over = False
        if is_over:
            raise SystemExit(0)
        if set(self._members) <= set(ulfm.failed(self.everybody)):
            ulfm.leave()  # other spares may have been woken before, and wait for this one
            raise SystemExit(1)
        return False

    def _seat(self, whole: MPI.Intracomm, limit_s: float) -> SpareSeat:
        """Make the world with the others, if this process gets a seat in it."""
        reports = reported(whole, ProcessReport(None, is_new=self._is_new))
        if is_over(reports):
            return SpareSeat(whole, left=True)
        if any(said.tells for said in reports):
            return SpareSeat(whole)
        seated = assign_seats(reports, self.seats)
        plain = split(whole, reports, seated)
        if plain is None:
            return SpareSeat(whole, seated=seated)
        facts = all_or_none(plain, lambda: bcast(plain, None, seated.first_survivor))
        peers().wait_for_ending(limit_s)

        def world_of() -> World:
            topology = placed(plain, facts, seated.seats)
            return World(facts.epoch, plain, topology, seats=seated.seats)

        world = all_or_none(plain, world_of, World.drop)
        Lineage().again(plain)
        return SpareSeat(whole, seated=seated, world=world, facts=facts)


def longest_nap_s(spares: int) -> float:
    """Say how long spares may sleep between two looks.

    Local.  The spares of a node wake when one of its processes ends.

    Parameters
    ----------
    spares : int
        How many there are.

    Returns
    -------
    float
        Seconds.  All together fall asleep not more often than Linux stands, see
        `closeranks.comms.wait`.
    """
    return min(max(LONGEST_S, spares / _NAPS_PER_S), _LONGEST_NAP_S)


class SpareSeat(NamedTuple):
    """The result of a wait for a seat.

    Attributes
    ----------
    whole : MPI.Intracomm
        All living processes.
    left : bool
        Whether the members give up, or all are dead.
    seated : RankAssignment or None
        The seats.
    world : World or None
        The new world; None for a spare that goes on waiting.
    facts : object
        The `JoinMessage` of its members.
    """

    whole: MPI.Intracomm
    left: bool = False
    seated: RankAssignment | None = None
    world: World | None = None
    facts: Any = None

    def drop(self) -> None:
        """Let go of the world, which was made in vain.  Local."""
        if self.world is not None:
            self.world.drop()


def reported(whole: MPI.Intracomm, report: ProcessReport) -> list[ProcessReport]:
    """Exchange reports with all living processes.

    Collective over ``whole``; all get the reports, or none.

    Parameters
    ----------
    whole : MPI.Intracomm
        All living processes.
    report : ProcessReport
        Of this process.

    Returns
    -------
    list of ProcessReport
        The reports of all, by rank.
    """
    return all_or_none(whole, lambda: allgather(whole, report))


def _watch(whole: MPI.Intracomm) -> None:
    """Let the processes of a node watch new ones there, and the other way."""
    node = all_or_none(whole, lambda: split_by_node(whole))
    try:
        peers().watch_node(node)
    except Exception:
        ulfm.revoke(node)
        deferred_free.defer(node)
        raise
    node.Free()


def placed(plain: MPI.Intracomm, facts: JoinMessage, seats: Sequence[int]) -> Topology:
    """Find the topology of the members.

    Collective over ``plain``.

    Parameters
    ----------
    plain : MPI.Intracomm
        The members.
    facts : JoinMessage
        The program's own topology, if it had one: a newcomer is where its seat is.
        And the links as measured before; new levels have the usual ones.
    seats : sequence of int
        By rank.

    Returns
    -------
    Topology
        The same on all of them.
    """
    found = discover(plain) if facts.given is None else facts.given.restrict(seats)
    known = {name: link for name, link in facts.links.items() if name in found.levels}
    return found.with_links(known)


def split(
    whole: MPI.Intracomm, reports: Sequence[ProcessReport], seated: RankAssignment
) -> MPI.Intracomm | None:
    """Make the communicator of the members, in the order of their seats.

    Collective over ``whole``; all have it when this returns, or none.

    Parameters
    ----------
    whole : MPI.Intracomm
        All living processes.
    reports : sequence of ProcessReport
        Their reports, by rank.
    seated : RankAssignment
        The seats.

    Returns
    -------
    MPI.Intracomm or None
        ``whole`` itself where it is that already; None without a seat.
    """
    seat = seated.seat_of.get(whole.rank)
    is_whole = [seated.seat_of.get(rank) for rank in range(whole.size)] == list(seated.seats)

    def made_of() -> MPI.Comm:
        if any(said.is_new for said in reports):
            _watch(whole)
        return whole if is_whole else whole.Split(MPI.UNDEFINED if seat is None else 0, seat or 0)

    made = all_or_none(whole, made_of)
    if made == MPI.COMM_NULL:
        return None
    assert isinstance(made, MPI.Intracomm)
    made.Set_errhandler(MPI.ERRORS_RETURN)
    return made
