"""Bound plans kept for the next call of the same kind.

`received_counts` asks the ranks how much each of them receives, where a caller
does not say.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from mmap import mmap
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.collective_call import CollectiveCall, lay_out
from closeranks.collectives.arguments.reduction_arguments import received_count
from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.error_translation import explaining
from closeranks.collectives.plans import schedule as columns
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, StepTable

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import CallKey
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.comms.buffers.buffer_spec import Spec


def received_counts(service: Service, recvbuf: Spec) -> list[int]:
    """Ask all ranks how much they receive in a Reduce_scatter.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    recvbuf : buffer specification
        Of this rank.

    Returns
    -------
    list of int
        Entries, by rank.

    Raises
    ------
    PeerLost, Revoked
        If ranks have died or given up.
    """
    service.guard.refuse("reduce_scatter")
    own = np.array([received_count("Reduce_scatter", recvbuf)])
    found = np.full(service.size, -1)
    with explaining("reduce_scatter", service.plain, service.family.world):
        service.careful.Allgather(own, found)
        if found.min() < 0:  # where a rank has died the library may end well and write nothing
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
    counts: list[int] = found.tolist()
    return counts


#: Kinds of calls whose steps are kept, and bytes of memory they may hold together.
MOST, MOST_BYTES = 256, 256 << 20
#: Whose memory can neither grow nor be closed as long as somebody has a view of it.
_LENDERS: Final = (bytearray, array, mmap, memoryview)


class _Kept:
    """What is kept of one kind of call; more than one binding if calls overlap."""

    __slots__ = ("bounds", "plan", "sent", "table")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.table: StepTable | None = None
        self.sent: dict[str, int] = {}
        self.bounds: list[Bound] = []


class PlanCache:
    """Bound plans of one world; the least recently used go first.

    Parameters
    ----------
    world : World
        Whose ranks the plans are for.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: OrderedDict[tuple[CallKey, str], _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Let go of everything, the callers' memory above all.  Local."""
        self._kept.clear()
        self._bytes = 0

    def problem(self, demand: CollectiveCall) -> Problem:
        """Give the problem that a demand poses, as this rank knows it."""
        return Problem(
            demand.operation,
            self._world.topology,
            count=demand.count,
            counts=demand.counts,
            root=demand.root,
            itemsize=demand.dtype.itemsize,
            commutative=demand.commutative,
            local=demand.operation in ("gatherv", "scatterv", "alltoallv"),
        )

    def take(self, demand: CollectiveCall, algorithm: str) -> tuple[Bound, dict[str, int]]:
        """Give a bound plan that no execution uses, tied to the demand's memory.

        Local.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        algorithm : str
            Its algorithm, by name.

        Returns
        -------
        bound : Bound
            Ready to run.
        sent : dict of str to int
            Level -> bytes this rank sends.
        """
        key = demand.key, algorithm
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(self.plan(demand, algorithm))
        self._kept.move_to_end(key)
        for bound in kept.bounds:
            if not bound.busy:
                self.tie(bound, demand)
                bound.lent = is_lent(demand)
                return bound, kept.sent
        bound = self.bind(kept.plan, demand, kept.table)
        if kept.table is None:
            kept.table = bound.table
            kept.sent.update(sent_per_level(bound))
        bound.lent = is_lent(demand)
        kept.bounds.append(bound)
        self._trim(_weight(bound))
        return bound, kept.sent

    def plan(self, demand: CollectiveCall, algorithm: str) -> Plan:
        """Give the plan of a demand.  Local."""
        return Plan(self.problem(demand), find(demand.operation, algorithm))

    def tie(self, bound: Bound, demand: CollectiveCall) -> None:
        """Tie a bound plan to the memory of another call of its kind.  Local."""
        memory = lay_out(demand)
        bound.attach(memory.input, memory.output)
        bound.reducer, bound.epilogue = demand.reducer, memory.finish
        bound.arrives = memory.arrives

    def bind(self, plan: Plan, demand: CollectiveCall, table: StepTable | None = None) -> Bound:
        """Bind a plan to a demand's memory, without keeping it.  Local."""
        memory = lay_out(demand)
        return Bound(
            plan,
            self._world.rank,
            input=memory.input,
            output=memory.output,
            dtype=demand.dtype,
            reducer=demand.reducer,
            world=self._world,
            arrives=memory.arrives,
            epilogue=memory.finish,
            table=table,
        )

    def _trim(self, more: int) -> None:
        """Make room; what an execution uses stays alive until it has drained."""
        self._bytes += more
        while len(self._kept) > MOST:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= sum(map(_weight, gone.bounds))
        for kept in self._kept.values():
            if self._bytes <= MOST_BYTES:
                return
            self._bytes -= sum(map(_weight, kept.bounds))
            kept.bounds.clear()


def is_lent(demand: CollectiveCall) -> bool:
    """Tell whether memory of a demand is of one of `_LENDERS`.  Local."""
    for part in (demand.source, demand.target):
        owner: object = None if part is None else part.memory.data
        while isinstance(owner, np.ndarray):
            owner = owner.base  # in the end what it is a view of, None where that is an array
        if isinstance(owner, _LENDERS):
            return True
    return False


def _weight(bound: Bound) -> int:
    """Bytes that a bound plan keeps alive."""
    return sum(array.nbytes for array in bound.memory if array is not None)


def sent_per_level(bound: Bound) -> dict[str, int]:
    """Count the bytes that this rank sends over each level.

    Local.  Messages whose size only the run tells are left out.

    Parameters
    ----------
    bound : Bound
        A plan on this rank.

    Returns
    -------
    dict of str to int
        Level name -> bytes.
    """
    topology = bound.world.topology
    rows = bound.table.rows
    sends = rows[rows[:, columns.KIND] == Kind.SEND]
    if not len(sends):
        return {}
    sends = sends[(sends[:, columns.FLAGS] & columns.SYMBOLIC) == 0]
    peers = sends[:, columns.PEER]
    buffers, _, counts, repeats, _ = sends[:, columns.BLOCK : columns.BLOCK + 5].T
    units = bound.table.buffers[:, 1][buffers]
    sizes = counts * repeats * np.where(units > 0, units, bound.dtype.itemsize)
    levels = topology.level_indices(np.full(len(peers), bound.rank), peers)
    return {
        name: int(sizes[levels == number].sum())
        for number, name in enumerate(topology.levels)
        if sizes[levels == number].any()
    }
