"""All that lives and dies with one epoch of a communicator.

A world owns the package's own duplicate of the communicator, the abort word,
and all else that is made in its time: user sub-communicators, shared files,
bound plans, persistent operations.  Closing and revoking walk that registry.
"""

from __future__ import annotations

import time
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from closeranks.collectives.arguments.native_handover import agreed_max
from closeranks.collectives.engine.call_guard import Lane
from closeranks.collectives.engine.error_translation import dead_of, interruptible, verdict
from closeranks.collectives.engine.interpreter import prepare
from closeranks.collectives.engine.late_ranks import Attendance
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators
from closeranks.collectives.plans import message_tags
from closeranks.collectives.shm.segment_layout import LINE_BYTES, Arrivals
from closeranks.comms.discovery.node_hardware import CoreLimits, cores_within, limits_of
from closeranks.comms.exit import signal_handlers
from closeranks.comms.jit import code_cache
from closeranks.comms.liveness.collective_creation import all_or_none
from closeranks.comms.liveness.failure_notices import Notices
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.comms.shm.shared_file import SharedFile, share
from closeranks.comms.topology.topology import Topology
from closeranks.comms.wait import settle
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.shm.segment import NodeMemory
    from closeranks.errors import PeerError

#: Place of the word that says that compiled code is on disk; the abort word is the first.
#: The bytes of such words; the lines of `Arrivals` are behind them.
_COMPILED, _WORDS = 8, 128
#: Seconds between two looks for ranks that have died.
_LOOK_S: Final = 1e-3


class Resource(Protocol):
    """What a world can own.

    It may also have ``revoke()``: local, called when the world is revoked.
    """

    def close(self) -> None:
        """Release it; called once, in the reverse order of owning."""


_R = TypeVar("_R", bound="Resource | MPI.Comm")


class World:
    """One epoch of a communicator.

    Collective over ``comm`` to make and to close.

    Parameters
    ----------
    epoch : int
        Its number: 0 at first, one more after every recovery.
    comm : MPI.Intracomm
        The communicator of this epoch; stays the caller's.
    topology : Topology
        Where its ranks sit; ``topology.size == comm.size``.
    seats : tuple of int, optional
        Rank -> rank in the first world; the ranks themselves if not given.
    whole : World, optional
        That of the communicator this one was derived from, which hears of deaths
        outside of it; itself if not given.
    notices : Notices, optional
        What is heard of ranks that give up; default: those of ``whole``, or
        nothing.

    Attributes
    ----------
    epoch, comm, topology, seats
        As given.
    rank, size : int
        Of ``comm``.
    traffic : MPI.Intracomm
        Duplicate of ``comm`` that carries the messages of plans and nothing else.
    node : MPI.Intracomm
        The ranks that share memory with this one.
    name : int
        Tells worlds of the same ranks apart, and is equal on all of these; 0 for
        one that no communicator after its own may have.
    limits : dict of int to CoreLimits
        Seats of this node -> what bounds the cores of these ranks.
    followed : TrackedCommunicators
        The program's own communicators that are revoked with this world.
    kept : list of World
        Of communicators that were derived from this one's and freed, see
        `closeranks.collectives.communicator.kept_worlds`.
    sequence_at : int
        Address of the int64 that is the number of the next collective.
    window : int
        How many executions may be in flight before one must have drained.
    undrained : dict of int to None
        Numbers of the executions in flight, in their order; they add and remove
        themselves.
    kernels : bool
        Whether all ranks of this node can run those of node memory; without them
        leaves are written out as moves.
    compiled : bool or None
        Whether compiled code runs its plans; None until somebody asked, see
        `closeranks.collectives.engine.interpreter`.

    Raises
    ------
    Unavailable
        On all ranks of a node, if it has no shared memory for the abort word;
        if the library's tags are too few.
    """

    def __init__(
        self,
        epoch: int,
        comm: MPI.Intracomm,
        topology: Topology,
        *,
        seats: tuple[int, ...] | None = None,
        whole: World | None = None,
        notices: Notices | None = None,
    ) -> None:
        signal_handlers.defer_handlers()
        self._whole = self if whole is None else whole
        self.notices: Notices = notices or (Notices() if whole is None else whole.notices)
        self.epoch, self.topology = epoch, topology
        self.limits: dict[int, CoreLimits] = {}
        self.carry(comm)
        self.seats = tuple(range(comm.size)) if seats is None else seats
        self._hears, self._look_at_s, self.name = ulfm.is_on(), 0.0, 0
        self._dead: tuple[int, ...] | None = None
        self.rank, self.size, self.window = comm.rank, comm.size, message_tags.window()
        self.compiled: bool | None = None
        self._marked = self._given_up = self._closed = False
        self._owned: list[Any] = []
        self._born_s, self._numbers = time.monotonic(), np.zeros(1, np.int64)
        self._sequence = self._numbers.data
        self.sequence_at = self._numbers.ctypes.data
        self.undrained: dict[int, None] = {}
        self._lanes: dict[tuple[int, ...], Lane] = {}
        self._memories: dict[tuple[int, ...], NodeMemory] = {}
        self._word = memoryview(bytearray(_WORDS)).cast("q")
        self.followed, self.kept = self.own(TrackedCommunicators()), list[World]()
        try:
            self._divide()
            roll = message_tags.roll_call(self.window)
            self.attendance = self.own(Attendance(self.traffic, roll, self.revoke))
            self._meet()
            self._lasting = {*map(id, self._owned)}
        except BaseException:
            self.revoke()  # others may wait for this rank on any of its communicators
            raise

    def _divide(self) -> None:
        """Make the communicators that every world has; all ranks have them, or none.

        A child's are made in calls of the program, while others may vote: then no
        agreement ends, but a barrier does, and who is there has what is to be revoked.
        """
        from mpi4py import MPI

        def divided() -> tuple[MPI.Intracomm, MPI.Intracomm]:
            traffic: MPI.Intracomm = self.own(self.comm.Dup())
            traffic.Set_errhandler(MPI.ERRORS_RETURN)
            return traffic, self.own(self._node_of(self.comm))

        is_child = self._whole is not self
        self.traffic, self.node = divided() if is_child else all_or_none(self.comm, divided)
        if is_child and self._hears:
            self.comm.Barrier()

    def _node_of(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """Make the communicator of this node's ranks, which the first world knows."""
        from mpi4py import MPI

        if self._whole is self:
            return split_by_node(comm)
        near = [rank for rank, seat in enumerate(self.seats) if seat in self._whole.limits]
        made = comm.Dup() if len(near) == self.size else comm.Split(near[0], self.rank)
        assert isinstance(made, MPI.Intracomm)
        return made

    def _meet(self) -> None:
        """Find out what the ranks of this node can do; collective over them."""
        whole = self._whole
        if whole is self:
            seats = [self.seats[rank] for rank in self.node_ranks]
            self.limits = dict(zip(seats, limits_of(self.node), strict=True))
            self.kernels = not any(agreed_max(self.node, [float(not code_cache.is_possible())]))
            # A child's ranks share the cores with those outside.
            settle(len(self.limits), cores_within(self.limits.values()))
        else:
            near = {self.seats[rank] for rank in self.node_ranks}
            self.limits = {seat: limits for seat, limits in whole.limits.items() if seat in near}
            self.kernels = whole.kernels
        file: SharedFile = self.own(share(self.node, _WORDS + LINE_BYTES * self.node.size))
        self.attendance.count_in(Arrivals(file.array[_WORDS:], self.node.rank, self.node_ranks))
        self._word = file.array.data.cast("q")
        self._word_at = file.array.ctypes.data

    def carry(self, comm: MPI.Intracomm) -> None:
        """Serve a communicator of these ranks from now on.  Local."""
        self.comm = comm if ulfm.is_on() else interruptible(comm, self.notices)

    def rest(self) -> bool:
        """Let go of all but what any communicator of these ranks needs.

        Local, once all ranks have met; False if this world is to be closed.
        """
        from mpi4py import MPI

        memories = self._memories.values()
        if not self.name or self._closed or self.revoked:
            return False
        if self.undrained or self.attendance.is_open or any(memory.turns for memory in memories):
            return False
        lanes = (lane.comm for lane in self._lanes.values())
        lasting = self._lasting | {*map(id, memories), *map(id, lanes)}
        for resource in reversed(self._owned):
            if id(resource) not in lasting:
                self.disown(resource)
                self._release(resource)
        self.comm = MPI.Intracomm()  # which is freed
        return True

    def drop(self) -> None:
        """Let go of a world that was made in vain; all ranks know.  Local."""
        self._marked = self._given_up = True
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "revoked" if self.revoked else "open"
        return f"<World {self.epoch}: rank {self.rank} of {self.size}, {state}>"

    def arm(self) -> None:
        """Be ready for deadlines: make now what no deadline ends at first use.

        Collective, harmless twice.  Code is compiled in seconds, and not on all nodes.
        """
        self.attendance.open()
        if self.kernels and self.node.size > 1:
            self.memory(self.node_ranks)
        prepare(self, together=True)
        self.comm.Barrier()

    def lane(self, members: tuple[int, ...]) -> Lane:
        """Return where native collectives of ``members`` run, in their order.

        Collective over ``members`` at the first call for them, then local.
        """
        found = self._lanes.get(members)
        if found is None:
            signal_handlers.defer_handlers()
            is_whole = members == tuple(range(self.size))
            comm = self.traffic if is_whole else self._made(members)
            found = self._lanes[members] = Lane(comm, deque())
        return found

    @cached_property
    def node_ranks(self) -> tuple[int, ...]:
        """Ranks that share memory with this one, itself among them, ascending."""
        return tuple(sorted(ranks_in(self.node, self.comm)))

    @property
    def node_memory(self) -> NodeMemory:
        """Where the ranks of this node work together; collective over them at first use."""
        return self.memory(self.node_ranks)

    def memory(self, members: tuple[int, ...]) -> NodeMemory:
        """Return where ranks of this node work together, say of a NUMA domain.

        Collective over ``members`` at the first call for them, then local.

        Parameters
        ----------
        members : tuple of int
            At least two of ``node_ranks``, ascending.

        Returns
        -------
        NodeMemory
            Lives as long as this world.
        """
        found = self._memories.get(members)
        if found is None:
            from closeranks.collectives.shm.segment import NodeMemory

            signal_handlers.defer_handlers()
            comm = self.node if members == self.node_ranks else self.lane(members).comm
            found = self._memories[members] = self.own(NodeMemory(comm, self._word_at))
        return found

    def _made(self, members: tuple[int, ...]) -> MPI.Intracomm:
        everybody = self.traffic.Get_group()
        group = everybody.Incl(members)
        made = self.own(self.traffic.Create_group(group))
        group.Free()
        everybody.Free()
        return made

    def sequence(self) -> int:
        """Give the next collective of this world its number: 0, 1, 2, ...

        Local; called in the same order on every rank, which makes the number
        equal on all of them.
        """
        number: int = self._sequence[0]
        self._sequence[0] = number + 1
        return number

    def own(self, resource: _R) -> _R:
        """Close ``resource`` with this world, and revoke it with it.

        Local.

        Parameters
        ----------
        resource : Resource or MPI.Comm
            Has ``close()``; a communicator is freed.

        Returns
        -------
        Resource or MPI.Comm
            As given.
        """
        self._owned.append(resource)
        self._born_s = time.monotonic()
        return resource

    @property
    def calls(self) -> int:
        """How many numbers `sequence` has given.  Local."""
        return int(self._sequence[0])

    def disown(self, resource: Resource | MPI.Comm) -> None:
        """Forget a resource that has been closed before its time.  Local."""
        self._owned = [other for other in self._owned if other is not resource]

    @property
    def revoked(self) -> bool:
        """Whether this rank has given this world up, or has heard that another one has."""
        return self._marked or self._word[0] != 0 or self.notices.notice is not None

    def check(self, operation: str) -> None:
        """Raise `PeerError` if this world is of no use any more.  Local."""
        if self._marked or self._word[0] != 0 or self.notices.notice is not None:
            knows = self.attendance.told and self.notices.notice is None
            raise Revoked(operation) if knows else self.verdict(operation)

    def verdict(self, operation: str, phase: str = "") -> PeerError:
        """Say what has ended this world, and an operation in that phase.  Local."""
        return verdict(self, self._whole, operation, phase)

    def seats_lost(self) -> tuple[int, ...]:
        """Say who has died, once this world has been given up.

        Local.  The library is asked once: news may take a moment, see
        `closeranks.collectives.engine.error_translation.dead_of`.

        Returns
        -------
        tuple of int
            Seats, ascending; empty where nobody has died, or nobody can tell.
        """
        if self._dead is None:
            self._dead = dead_of(self.traffic) if self._hears else ()
        return tuple(self.seats[rank] for rank in self._dead)

    def look(self) -> None:
        """Ask the library now and then who has died; if anybody has, give this world up.

        Local; where nothing but this rank's patience would end a wait.  Calls MPI.
        """
        if not self._hears or self._marked or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + _LOOK_S
        ulfm.listen()
        if ulfm.failed(self.traffic) or ulfm.is_revoked(self.traffic):
            self.revoke()

    def revoke(self) -> None:
        """Give this world up: every wait in it ends with `Revoked`.

        Local, harmless twice.  Ranks of this node see it at once, through the
        abort word; ranks elsewhere where the library can revoke communicators
        (ULFM), else when their own deadline passes.
        """
        if self._given_up:
            return
        self._marked = True
        self._word[0] = self.rank + 1
        for resource in reversed(self._owned):
            if hasattr(resource, "revoke"):
                resource.revoke()
            elif hasattr(resource, "Revoke"):
                ulfm.revoke(resource, self._born_s)
        if self._hears and self.comm:  # else it rests
            ulfm.revoke(self.comm, self._born_s)
        self._given_up = True  # the last: a signal's handler may end this half-way

    @property
    def has_compiled(self) -> bool:
        """Whether the first rank of this node has compiled what is kept on disk."""
        return self._word[_COMPILED] != 0

    def tell_compiled(self) -> None:
        """Tell the ranks of this node that compiled code is on disk.  Local."""
        self._word[_COMPILED] = 1

    @property
    def closed(self) -> bool:
        """Whether `close` has been called, which all ranks do together.  Local."""
        return self._closed

    def close(self) -> None:
        """Release all that this world owns, the youngest first.

        Collective; harmless twice.  The communicators of a revoked world are freed
        later: MPI would reuse their context ids, and messages of the dead may arrive.
        """
        if self._closed:
            return
        self._closed = True
        engine().end(self)
        while self._owned:
            self._release(self._owned.pop())
        self._word = memoryview(bytearray(8)).cast("q")

    def _release(self, resource: Any) -> None:
        if not hasattr(resource, "Free"):
            resource.close()
        elif not self.revoked:
            resource.Free()
        elif not hasattr(resource, "close"):  # a child has one, and goes on or ends by it
            deferred_free.defer(resource)

    def first_tag(self, sequence: int) -> int:
        """Return the tag of slot 0 of execution ``sequence``."""
        return sequence % self.window << message_tags.SLOT_BITS
