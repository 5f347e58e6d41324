"""Who the members of a communicator are, and how that changes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, cast

from mpi4py import MPI

from closeranks.collectives.communicator.kept_worlds import keep, open_world
from closeranks.collectives.dispatch.dispatch import Service
from closeranks.collectives.dispatch.injected_dispatch import Faulty
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.error_translation import explaining
from closeranks.collectives.engine.init_state import alike
from closeranks.collectives.fastpath.shortcut import Shortcuts
from closeranks.collectives.faults.survivor_creation import Lineage
from closeranks.collectives.selection.findings import TrialFindings
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms import argument
from closeranks.comms.buffers.buffer_spec import message
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import deferred_free, mpi_handle, ulfm
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.engine.fault_injection import Injection
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.comms.topology.topology import Topology

#: So many topologies of some of its ranks a communicator keeps.
_MOST_RESTRICTED: Final = 8


class Membership:
    """The members of one communicator, which a recovery changes.

    A recovery moves the handle to another MPI communicator: whoever holds it
    finds the members that are left.

    Parameters
    ----------
    comm : MPI.Intracomm
        The handle.
    plain : MPI.Intracomm
        What it stands for, as mpi4py knows it.
    family : Family
        Options it shares with others.
    topology : Topology
        Where its ranks sit.
    chooser : Chooser
        Who chooses algorithms.
    seats : tuple of int
        Rank -> rank in the first world.
    world : World, optional
        What carries plans, if it is there already: of the first of a family.
    parent : Membership, optional
        Of the communicator that it was derived from.

    Attributes
    ----------
    comm, family, parent
        As given.
    service : Service
        Serves its calls.
    lineage : Lineage
        What was derived from it.
    seats, topology
        As given, or as the last recovery has made them.
    opened : World or None
        What carries plans, if it is there.
    is_first : bool
        Whether it is the first of its family.
    is_given_up : bool
        Whether a recovery has found nobody who could say who the members are.
    has_ended : bool
        Whether it was closed, or freed by another handle.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        plain: MPI.Intracomm,
        family: Family,
        topology: Topology,
        *,
        chooser: Chooser,
        seats: tuple[int, ...],
        world: World | None = None,
        parent: Membership | None = None,
    ) -> None:
        self.comm, self.family, self.parent, self.lineage = comm, family, parent, Lineage()
        self.seats, self.topology, self.opened = seats, topology, world
        self._restricted: dict[tuple[int, ...], Topology] = {}
        serve = Service if family.faults is None else Faulty
        shortcuts = Shortcuts(comm, calls_left=chooser.calls_left)
        self.service = serve(
            plain, family, self._open_world, chooser, shortcuts, family.notices.count(seats)
        )
        self.is_first, self._made_s = world is not None, time.monotonic()
        self.is_given_up = self.has_ended = False
        deferred_free.notify_on_free(comm, self._be_freed)

    def topology_of(self, ranks: tuple[int, ...]) -> Topology:
        """Say where some ranks sit; programs ask for the same ones again.  Local."""
        found = self._restricted.get(ranks)
        if found is None:
            if len(self._restricted) >= _MOST_RESTRICTED:
                self._restricted.clear()
            found = self._restricted[ranks] = self.topology.restrict(ranks)
        return found

    def _open_world(self) -> World:
        """Open what carries plans; collective."""
        if self.opened is None:
            first, plain = self.family.world, self.service.plain

            def make() -> World:
                made = World(first.epoch, plain, self.topology, seats=self.seats, whole=first)
                return first.own(made)

            self.opened = open_world(first, self.service.careful, self.seats, make)
        return self.opened

    def shut_world(self) -> None:
        """Let go of what carries plans, once all ranks have met."""
        opened, self.opened = self.opened, None
        if opened is None:
            return
        first = self.family.world
        rests = opened.epoch == first.epoch and opened.rest()
        ending = keep(first, opened) if rests else opened
        if ending is not None:
            first.disown(ending)
            ending.close()

    @property
    def world(self) -> World:
        """What carries messages that are not the program's; collective at first use."""
        return self.service.world

    @property
    def chooser(self) -> Chooser:
        """Who chooses the algorithms of its calls."""
        return self.service.chooser

    @property
    def followed(self) -> TrackedCommunicators:
        """Who revokes what is not ours."""
        return self.family.world.followed

    def incarnation(self, seat: int) -> int:
        """Tell how many newcomers have taken a seat, see `Communicator.incarnation`."""
        seat = argument.whole("incarnation", "seat", seat, below=self.family.seats)
        return self.family.newcomers.get(seat, 0)

    @property
    def faults(self) -> Injection:
        """What goes wrong on purpose on this rank; raises `UsageError` if nothing may."""
        faults = self.family.faults
        if faults is None:
            raise UsageError("faults", "faults on purpose are not allowed", "init(faults=True)")
        return faults

    def keep(self, arrays: tuple[NDArray[Any], ...]) -> None:
        """Let the attempt that is under way restore arrays, see `Communicator.keep`."""
        attempt = self.family.attempt
        if attempt is not None:
            for array in arrays:
                attempt.save(message(array, "keep", writable=True))

    @property
    def state_report(self) -> tuple[int, bool]:
        """Since which epoch this process is a member, and whether its state counts."""
        return self.family.born, self.family.synchronized

    def note_synchronized(self) -> None:
        """Let the state of this process count once an attempt has been agreed.  Local.

        Not at once: a program may bring one state after the other, and a newcomer has
        its own first one of the next still.  Nor where only some members were asked.
        """
        if self.service.size == self.family.world.size:
            self.family.brought = True

    def together(self, operation: str) -> AbstractContextManager[None]:
        """Refuse what the ranks would not all do any more; else as `explaining`."""
        self.service.guard.refuse(operation)
        return self.explaining(operation)

    def explaining(self, operation: str) -> AbstractContextManager[None]:
        """Tell what an error of the library means to what the ranks do together."""
        self.refuse_shut(operation)
        return explaining(operation, self.service.plain, self.family.world)

    def refuse_shut(self, operation: str) -> None:
        """Raise `Revoked` once it was closed or given up.  Local."""
        self.service.guard.refuse_shut(operation)

    def refuse_given_up(self, operation: str) -> None:
        """Raise `Revoked` if a rank has given the family up.  Local."""
        self.family.notices.check(operation, self.seats)

    def descent(self) -> Iterator[Membership]:
        """Give this one and those of all that came of it.  Local."""
        yield self
        for child in self.lineage.children():
            yield from cast("Membership", child).descent()

    def move(
        self,
        plain: MPI.Intracomm,
        topology: Topology,
        seats: tuple[int, ...],
        *,
        world: World | None = None,
        heritage: Mapping[Agreed, str] | None = None,
    ) -> None:
        """Go on as another MPI communicator, after a recovery.

        Local.

        Parameters
        ----------
        plain : MPI.Intracomm
            Takes the place of the one that was revoked.
        topology : Topology
            Where its ranks sit.
        seats : tuple of int
            Rank -> rank in the first world.
        world : World, optional
            What carries plans, if it is there already.
        heritage : mapping of Agreed to str, optional
            As for `Chooser`.
        """
        deferred_free.defer(self.comm)
        mpi_handle.point(self.comm, plain)
        deferred_free.notify_on_free(self.comm, self._be_freed)
        self.lineage.settle()
        self._restricted.clear()
        self.seats, self.topology, self.opened = seats, topology, world
        was = self.service.chooser
        found = None
        if world is not None:  # the first communicator, of which all members know the same
            found = self.family.findings.setdefault(shape(topology), TrialFindings())
        numbers = {**was.numbers, "kernels": {}}  # whose memory is to be made anew
        chooser = alike(
            numbers, shape(was.topology), topology, heritage,
            findings=found, is_open=world is not None,
        )  # fmt: skip
        shortcuts = Shortcuts(self.comm, calls_left=chooser.calls_left)
        self.service.move(plain, chooser, shortcuts)

    def give_up(self) -> None:
        """Be of no use after a recovery: nobody can tell who the members are.  Local."""
        self.is_given_up = True
        self.service.shut("what came of a group, or not all ranks had, is not made again")
        if self.parent is not None:
            self.parent.lineage.forget(self)
            self.parent.depart()

    def rouse(self) -> None:
        """Wake who waits for this rank here.  Local."""
        if self.opened is not None:
            self.opened.revoke()
        if self.comm != MPI.COMM_NULL:
            ulfm.revoke(self.comm, self._made_s)

    def depart(self) -> None:
        """Be forgotten once it is freed, and all that came of it.  Local."""
        parent = self.parent
        if parent is not None and self.comm == MPI.COMM_NULL and not self.lineage.children():
            parent.lineage.forget(self)
            parent.depart()

    def forsake(self, handle: MPI.Intracomm, error: BaseException | None = None) -> None:
        """Leave one that was derived, without the others, which are woken.

        Local, harmless twice.  What came of it is of no use to them either; where the
        library wakes nobody the whole family is given up.

        Parameters
        ----------
        handle : MPI.Intracomm
            By which it is left.
        error : BaseException, optional
            What is the cause.
        """
        if forked_child.is_child() or handle == MPI.COMM_NULL:
            return
        for one in self.descent():
            one.rouse()
        if not ulfm.is_on():
            self.family.notices.leave(error)
            self.family.world.revoke()
        if self.parent is not None:
            self.parent.lineage.forsake(self)
        self.family.world.disown(self.comm)
        deferred_free.defer_and_clear(handle)
        self.service.shut()
        self.depart()

    def release(self, handle: MPI.Intracomm) -> None:
        """Drop the handle; later calls find none."""
        self.has_ended = True
        if not self.family.world.revoked:
            deferred_free.free_or_defer(handle)
        elif self.is_first:
            deferred_free.defer(handle)
        else:
            deferred_free.defer_and_clear(handle)
        self.service.shut()

    def _be_freed(self) -> None:
        """Note that the program frees it by another handle.  Local."""
        if self.has_ended:
            return
        self.has_ended = True
        self.service.shut()
        self.family.world.disown(self.comm)
        mpi_handle.point(self.comm, MPI.COMM_NULL)
        self.depart()
