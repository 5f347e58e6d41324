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

from closeranks.collectives.arguments.collective_call import CallMemory, CollectiveCall, lay_out
from closeranks.collectives.arguments.reduction_arguments import received_count
from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.error_translation import explaining
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.count_record import LARGEST_COUNT, Unfollowed
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, StepTable
from closeranks.collectives.reduction.compiled_ops import combiner_of
from closeranks.collectives.refill.count_plan import CountPlan
from closeranks.collectives.refill.refill_layout import DONE, OTHER
from closeranks.collectives.refill.refilled_plan import Refilled
from closeranks.comms.mpi import messages

if TYPE_CHECKING:
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
#: Different steps of one algorithm that are kept for calls of other counts, and counts that fit
#: none of them before all are given up.
_MOST_STEPS, _MOST_ALONE = 16, 64
#: Whose memory can neither grow nor be closed as long as somebody has a view of it.
_LENDERS: Final = (bytearray, array, mmap, memoryview)


class _Kept:
    """What is kept of one kind of call; more than one binding if calls overlap."""

    __slots__ = ("bounds", "plan", "sent", "table", "weight")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.table: StepTable | None = None
        self.sent: dict[str, int] = {}
        self.bounds: list[Bound] = []
        self.weight = 0

    def clear(self) -> None:
        """Let go of the bindings."""
        self.bounds.clear()


class _Counts:
    """What is kept of calls that are alike but for their count.

    Attributes
    ----------
    plans : list of (CountPlan, list of Refilled)
        Whose steps differ, the last used first; with bindings, more than one if
        calls overlap.
    alone : set of int
        Counts that have plans of their own, because none of the steps that may be
        kept fit them.
    beyond : int
        From here on all counts have: steps of such a count did not follow from it.
    weight : int
        Bytes that the bindings keep alive.
    """

    __slots__ = ("alone", "beyond", "plans", "weight")

    def __init__(self, beyond: int) -> None:
        self.plans: list[tuple[CountPlan, list[Refilled]]] = []
        self.alone: set[int] = set()
        self.beyond, self.weight = beyond, 0

    def clear(self) -> None:
        """Let go of the bindings."""
        for _, bounds in self.plans:
            bounds.clear()

    def find(self, demand: CollectiveCall, memory: CallMemory) -> tuple[Refilled | None, int]:
        """Give a binding that is filled for a call, and how that went."""
        count, given, taken = demand.count, memory.input, memory.output
        for place, (plan, bounds) in enumerate(self.plans):
            for bound in bounds:
                if not bound.busy:
                    break
            else:
                if not plan.steps.fits(count):
                    continue
                bound = Refilled(plan, demand.dtype, demand.reducer)
                bounds.append(bound)
            before = bound.weight
            answer = bound.refill(count, given, taken)
            if answer == OTHER:
                continue
            self.weight += bound.weight - before
            if place:
                self.plans.insert(0, self.plans.pop(place))
            return bound, answer
        return None, OTHER

    def is_full(self, count: int) -> bool:
        """Tell whether a count that fits no steps is left alone; after many, begin anew."""
        if len(self.plans) < _MOST_STEPS:
            return False
        self.alone.add(count)
        if len(self.alone) > _MOST_ALONE:
            self.plans.clear()
            self.alone.clear()
            self.weight = 0
        return True


class PlanCache:
    """Bound plans of one world; the least recently used go first.

    Calls that differ in their count share bound plans where their steps are the
    same, see `closeranks.collectives.refill.refilled_plan`.

    Parameters
    ----------
    world : World
        Whose ranks the plans are for.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: OrderedDict[object, _Kept | _Counts] = OrderedDict()
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

    def take(
        self, demand: CollectiveCall, algorithm: str, *, steps: bool = False
    ) -> tuple[Bound, dict[str, int]]:
        """Give a bound plan that no execution uses, tied to the demand's memory.

        Local.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        algorithm : str
            Its algorithm, by name.
        steps : bool
            Whether Python is to run the steps: plans that counts share cannot.

        Returns
        -------
        bound : Bound
            Ready to run.
        sent : dict of str to int
            Level -> bytes this rank sends.
        """
        memory = lay_out(demand)
        if demand.counts is None and self._world.compiled and not steps:
            refilled = self._refilled(demand, algorithm, memory)
            if refilled is not None:
                _finish(refilled, demand, memory)
                refilled.lent = is_lent(demand)
                return refilled, refilled.sent
        key = demand.key, algorithm
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(self.plan(demand, algorithm))
        assert isinstance(kept, _Kept)
        self._kept.move_to_end(key)
        for bound in kept.bounds:
            if not bound.busy:
                self.tie(bound, demand, memory)
                bound.lent = is_lent(demand)
                return bound, kept.sent
        bound = self.bind(kept.plan, demand, kept.table, memory)
        if kept.table is None:
            kept.table = bound.table
            kept.sent.update(sent_per_level(bound))
        bound.lent = is_lent(demand)
        kept.bounds.append(bound)
        kept.weight += _weight(bound)
        self._trim(_weight(bound))
        return bound, kept.sent

    def _refilled(
        self, demand: CollectiveCall, algorithm: str, memory: CallMemory
    ) -> Refilled | None:
        """Give a bound plan that counts share; None if this call needs one of its own."""
        reducer = demand.reducer
        name = None if reducer is None else reducer.name
        key = (
            demand.operation, algorithm, demand.root, demand.commutative, demand.dtype, name,
            messages.LONGEST,
        )  # fmt: skip
        counts = self._kept.get(key)
        if counts is None:
            runs = reducer is None or combiner_of(name, demand.dtype) is not None
            counts = self._kept[key] = _Counts(LARGEST_COUNT if runs else 0)
        assert isinstance(counts, _Counts)
        self._kept.move_to_end(key)
        if demand.count >= counts.beyond or demand.count in counts.alone:
            return None
        before = counts.weight
        bound, answer = counts.find(demand, memory)
        if bound is None and not counts.is_full(demand.count):
            try:
                plan = CountPlan(self.plan(demand, algorithm), self._world)
            except Unfollowed:
                counts.beyond = demand.count
                return None
            counts.plans.insert(0, (plan, []))
            bound, answer = counts.find(demand, memory)
        if len(self._kept) > MOST or counts.weight != before:
            self._trim(counts.weight - before)
        return bound if answer == DONE else None

    def plan(self, demand: CollectiveCall, algorithm: str) -> Plan:
        """Give the plan of a demand.  Local."""
        return Plan(self.problem(demand), find(demand.operation, algorithm))

    def tie(self, bound: Bound, demand: CollectiveCall, memory: CallMemory | None = None) -> None:
        """Tie a bound plan to the memory of another call of its kind.  Local."""
        memory = memory or lay_out(demand)
        bound.attach(memory.input, memory.output)
        _finish(bound, demand, memory)

    def bind(
        self,
        plan: Plan,
        demand: CollectiveCall,
        table: StepTable | None = None,
        memory: CallMemory | None = None,
    ) -> Bound:
        """Bind a plan to a demand's memory, without keeping it.  Local."""
        memory = memory or lay_out(demand)
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
            self._bytes -= gone.weight
        for kept in self._kept.values():
            if self._bytes <= MOST_BYTES:
                return
            self._bytes -= kept.weight
            kept.weight = 0
            kept.clear()


def _finish(bound: Bound, demand: CollectiveCall, memory: CallMemory) -> None:
    """Note what is done beside the steps of a call."""
    bound.reducer, bound.epilogue, bound.arrives = demand.reducer, memory.finish, memory.arrives


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
