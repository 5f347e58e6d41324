"""Communicators that go on after ranks have died, under the same objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from closeranks.collectives.engine.init_state import alike
from closeranks.collectives.fastpath.shortcut import Shortcuts
from closeranks.collectives.faults.attempts import Attempt
from closeranks.collectives.replicated import synchronization
from closeranks.collectives.selection.tuning_table import shape
from closeranks.comms import argument
from closeranks.comms.buffers.buffer_spec import message
from closeranks.comms.mpi import deferred_free, mpi_handle, ulfm
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from closeranks.collectives.arguments.call_key import Agreed
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.fault_injection import Injection
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.faults.survivor_creation import Lineage, Recoverable
    from closeranks.collectives.replicated.state_leaves import State
    from closeranks.collectives.replicated.synchronization import Digest
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.comms.topology.topology import Topology


class Recovering(MPI.Intracomm):
    """Who the members are, and how that changes.

    A recovery moves the object to another MPI communicator: whoever holds it
    finds the members that are left.
    """

    _service: Service
    _seats: tuple[int, ...]
    _topology: Topology
    _world: World | None
    _family: Family
    _lineage: Lineage
    _parent: Recovering | None
    _given_up = False
    _made_s: float

    @property
    def hierarchy(self) -> Topology:
        """Where the ranks sit."""
        return self._topology

    @property
    def epoch(self) -> int:
        """Number of recoveries so far."""
        return self._family.world.epoch

    @property
    def threaded(self) -> bool:
        """Whether what nobody waits for goes on: MPI_THREAD_MULTIPLE on all ranks."""
        return self._family.threaded

    @property
    def checks(self) -> bool:
        """Whether what ranks pass is compared, see `closeranks.init`."""
        return self._family.check

    @property
    def alive(self) -> tuple[int, ...]:
        """Seats of the members, ascending."""
        return tuple(sorted(self._seats))

    @property
    def seat(self) -> int:
        """Seat of this process: its rank in the first world."""
        return self._seats[self._service.rank]

    @property
    def joined(self) -> bool:
        """Whether this process entered later than the others."""
        return self._family.joined

    def incarnation(self, seat: int) -> int:
        """Tell how many newcomers have taken a seat so far.

        Local; the same on all members.

        Parameters
        ----------
        seat : int
            A rank of the first world.

        Returns
        -------
        int
            0 for a process that was there from the start.

        Raises
        ------
        UsageError
            If there was no such rank.
        """
        seats = self._family.seats
        seat = argument.whole("incarnation", "seat", seat, below=seats)
        return self._family.newcomers.get(seat, 0)

    def attempts(
        self, limit: int | None = None, min_ranks: int = 1, *, restore: bool = True
    ) -> Iterator[Attempt]:
        """Repeat a body until it has ended well on all members.

        Collective over the members of the first communicator, whichever of the
        family is asked; one agreement an attempt, some microseconds.  Use as::

            for attempt in comm.attempts():
                with attempt:
                    comm.Allreduce(gradient, total)

        Leaving the ``with`` block votes.  `PeerError`, and MPI errors that speak of
        dead ranks or revoked communicators, vote for another attempt: the members
        that are left go on in a new world.  Any other exception is raised here, and
        `PeerLost` with its ``cause`` on the others.

        After an attempt that has failed, send buffers are as they were, receive
        buffers undefined; those of calls in place are as they were when the attempt
        first used them.  Leaving such an attempt by ``break`` or ``return`` does not
        repeat it: the next call raises `Revoked`, for its results were never agreed.

        Parameters
        ----------
        limit : int, optional
            How many attempts at most.
        min_ranks : int
            With fewer members left, every one of them raises `PeerLost`.
        restore : bool
            Whether buffers of calls in place are copied before their first use.

        Yields
        ------
        Attempt
            To be entered once; ``.number``, ``.world``, ``.lost``.

        Raises
        ------
        UsageError
            Inside of another attempt; if a request is unfinished at the end.
        PeerLost
            If another member left by an exception; if ``min_ranks`` are not left;
            what ended the last attempt, if ``limit`` were not enough or the
            communicator was opened with ``on_failure="raise"``.
        Revoked
            If an attempt before failed and was left, or what it uses is of no use for
            good, or ``limit`` or ten in a row have failed though nobody was lost.
        """
        if limit is not None:
            limit = argument.whole("attempts", "limit", limit, least=1)
        min_ranks = argument.whole("attempts", "min_ranks", min_ranks)
        return self._family.recovery.attempts(limit, min_ranks, restores=restore)

    @property
    def faults(self) -> Injection:
        """What goes wrong on purpose on this rank, see `Injection.fail_at`.

        Raises
        ------
        UsageError
            If the communicator was not opened with ``faults=True`` (local).
        """
        faults = self._family.faults
        if faults is None:
            raise UsageError("faults", "faults on purpose are not allowed", "init(faults=True)")
        return faults

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the whole job, on all ranks; does not return.

        Local.  Under ``closeranks run --faults`` the launcher does it, for MPI_Abort
        ends nobody there.

        Parameters
        ----------
        errorcode : int
            Exit status of the job; the default, 0, is mpi4py's.
        """
        ulfm.abort(errorcode)
        super().Abort(errorcode)

    def keep(self, *arrays: NDArray[Any]) -> None:
        """Let the attempt that is under way, if there is one, restore arrays if it fails.

        Local; for what is about to be overwritten by other means than a call in place.

        Parameters
        ----------
        *arrays : ndarray
            Copied, once an attempt.
        """
        attempt = self._family.attempt
        if attempt is not None:
            for array in arrays:
                attempt.save(message(array, "keep", writable=True))

    def digest(self, state: State) -> Digest:
        """Compare what all ranks hold alike.

        Collective; one gathering of digests where all is well.  Every byte is read.

        Parameters
        ----------
        state : dict, list or tuple
            A nest of them, of arrays, numbers, strings and bytes.

        Returns
        -------
        Digest
            ``.value`` of what most ranks have, ``.differing``, ``.unhealthy`` (NaN,
            Inf); readable as text.

        Raises
        ------
        UsageError
            If something else is in the ``state`` of any rank, or two leaves of it
            have the same path.
        """
        return synchronization.digest(self, state)

    def synchronize(self, state: State) -> State:
        """Bring every rank to the state that most of them have, bit for bit.

        Collective; the first statement of an attempt.  A newcomer has no say and gets
        the state of the others; of groups as large the one with the longest-lived
        process is right.  Who differs gets what differs from the nearest rank that is
        right.  Members that are no newcomers and differ, and numbers that are not
        finite, are warned of by rank and path.

        Parameters
        ----------
        state : dict, list or tuple
            A nest of them, of arrays, numbers, strings and bytes, alike on all ranks.
            Dicts, lists and arrays of the same kind are changed in place.

        Returns
        -------
        dict, list or tuple
            The state: ``state`` itself unless it is a tuple.

        Raises
        ------
        UsageError
            If something else is in the ``state`` of any rank, or two leaves of it
            have the same path.
        Corrupted
            If what came is not what was sent.
        """
        return synchronization.synchronize(self, state)

    @property
    def state_report(self) -> tuple[int, bool]:
        """Since which epoch this process is a member, and whether its state counts."""
        return self._family.born, self._family.synchronized

    def explained(self, operation: str, error: MPI.Exception) -> Exception:
        """Give what is to be raised for an error of the library.

        Local.  If it speaks of dead ranks, or of a communicator that was revoked,
        the family is given up, as if a call of its own had met it.

        Parameters
        ----------
        operation : str
            The call.
        error : MPI.Exception
            What the library raised, here or on a communicator of the same ranks.

        Returns
        -------
        Exception
            `PeerLost`, `Revoked`, or the error itself if it speaks of something else.
        """
        return self._service.explained(operation, error)

    def refuse_shut(self, operation: str) -> None:
        """Raise `Revoked` once it was closed or given up.  Local."""
        self._service.guard.refuse_shut(operation)

    def note_synchronized(self) -> None:
        """Let the state of this process count once an attempt has been agreed.  Local.

        Not at once: a program may bring one state after the other, and a newcomer has
        its own first one of the next still.  Nor where only some members were asked.
        """
        if self.size == self._family.world.size:
            self._family.brought = True

    @property
    def world(self) -> World:
        """What carries messages that are not the program's."""
        return self._service.world

    def give_up(self) -> None:
        """Be of no use after a recovery: nobody can tell who the members are.  Local."""
        self._given_up = True
        self._service.shut("what came of a group, or not all ranks had, is not made again")
        if self._parent is not None:
            self._parent._lineage.forget(self)
            self._parent._depart()

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
        deferred_free.defer(self)
        mpi_handle.point(self, plain)
        deferred_free.notify_on_free(self, self._be_freed)
        self._lineage.settle()
        self._seats, self._topology, self._world = seats, topology, world
        was = self._service.chooser
        chooser = alike(was.numbers, shape(was.topology), topology, heritage)
        self._service.move(plain, chooser, Shortcuts(self))

    def derived_again(self, plain: MPI.Intracomm) -> list[tuple[Recoverable, MPI.Intracomm | None]]:
        """Derive again what was derived from this one, see `Lineage.again`.  Collective."""
        return self._lineage.again(plain)

    @property
    def chooser(self) -> Chooser:
        """Who chooses the algorithms of its calls."""
        return self._service.chooser

    def _descent(self) -> Iterator[Any]:
        """Give what `descent` does; all are communicators of this class."""
        return self.descent()

    def descent(self) -> Iterator[Recoverable]:
        """Give this communicator and all that came of it.  Local."""
        yield self
        for child in self._lineage.children():
            yield from child.descent()

    def _rouse(self) -> None:
        """Wake who waits for this rank here.  Local."""
        if self._world is not None:
            self._world.revoke()
        if self != MPI.COMM_NULL:
            ulfm.revoke(self, self._made_s)

    def _be_freed(self) -> None:
        """Note that the program frees it by another handle.  Local."""

    def _depart(self) -> None:
        """Be forgotten once it is freed, and all that came of it.  Local."""
        parent = self._parent
        if parent is not None and self == MPI.COMM_NULL and not self._lineage.children():
            parent._lineage.forget(self)
            parent._depart()
