"""A refilled plan is, column by column, what binding the plan anew gives.

No message is sent: a world is made up, so that each rank of each topology can be
bound in one process.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.dispatch.plan_cache import sent_per_level
from closeranks.collectives.engine import loop_layout as loop
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.execution_arrays import ExecutionLayout
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.collective import REDUCING, ROOTED, VECTOR, Problem
from closeranks.collectives.plans.count_record import Unfollowed
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.reduction.op import reducer
from closeranks.collectives.refill import refill_layout as at
from closeranks.collectives.refill.count_plan import CountPlan
from closeranks.collectives.refill.refilled_plan import Refilled
from closeranks.comms.mpi import messages
from closeranks.comms.topology.topology import Topology

pytest.importorskip("numba")
SHARING = [
    (operation, algorithm)
    for operation, found in ALGORITHMS.items()
    if operation not in VECTOR and operation != "alltoallv"
    for algorithm in found
    if algorithm.follows
]
TOPOLOGIES = (
    Topology.regular(node=1, rank=1), Topology.regular(node=1, rank=2),
    Topology.regular(node=1, rank=4), Topology.regular(node=2, rank=3),
    Topology.regular(site=2, node=2, rank=2),
    Topology.from_groups(("node", "rank"), [[0, 1, 0, 2, 1, 0, 0], list(range(7))]),
)  # fmt: skip
#: As many bytes as any call here takes, and some more for places that are not aligned.
ROOM = 8 * 8 * 60_000 + 64


class Caller:
    """One rank's calls of one algorithm, bound anew and refilled.

    Parameters
    ----------
    problem : Problem
        Of any count.
    algorithm : Algorithm
        How.
    rank : int
        The rank.
    dtype : numpy dtype
        The element.
    """

    def __init__(
        self, problem: Problem, algorithm: Algorithm, rank: int, dtype: np.dtype[Any]
    ) -> None:
        self.problem, self.algorithm, self.dtype = problem, algorithm, dtype
        made_up = SimpleNamespace(rank=rank, topology=problem.topology, traffic=MPI.COMM_SELF)
        self.world = cast("World", made_up)
        self.reducer = reducer(MPI.SUM, dtype) if problem.operation in REDUCING else None
        self.bounds: list[Refilled] = []
        self.memory = [np.zeros(ROOM, np.uint8) for _ in range(2)]

    def call(self, count: int, *, in_place: bool, shift: int) -> int:
        """Refill for a count, and compare; returns the answer of the last refill."""
        one = self.problem
        problem = Problem(
            one.operation, one.topology, count=count, root=one.root,
            itemsize=self.dtype.itemsize, commutative=one.commutative,
        )  # fmt: skip
        plan = Plan(problem, self.algorithm)
        given = self.memory[0][64 - self.memory[0].ctypes.data % 64 :]
        taken = given if in_place else self.memory[1][shift:]
        fresh = Bound(
            plan, self.world.rank, input=given, output=taken, dtype=self.dtype,
            reducer=self.reducer, world=self.world,
        )  # fmt: skip
        answer = at.OTHER
        for bound in self.bounds:
            answer = bound.refill(count, given, taken)
            fits = cast("CountPlan", bound._keeps).steps.fits(count)
            assert fits is (answer != at.OTHER)
            if fits:
                break
        else:
            try:
                shared = CountPlan(plan, self.world)
            except Unfollowed:
                assert count * self.dtype.itemsize >= 128 << 10
                return at.OTHER
            bound = Refilled(shared, self.dtype, self.reducer)
            self.bounds.append(bound)
            answer = bound.refill(count, given, taken)
        compare(fresh, bound, answer)
        return answer


def compare(fresh: Bound, bound: Refilled, answer: int) -> None:
    """Compare table, rows of the loop, start of an execution, scratch and bytes sent."""
    for field in fields(fresh.table):
        one, other = getattr(fresh.table, field.name), getattr(bound.table, field.name)
        assert np.array_equal(one, other), field.name
    layout, expected = bound.layout, ExecutionLayout(fresh)
    assert isinstance(layout, ExecutionLayout)
    in_python = (expected.rows[:, loop.WAY] == loop.PYTHON).any()
    assert answer == (at.REFUSED if in_python else at.DONE)
    if in_python:
        return
    homes = np.array([0 if array is None else array.ctypes.data for array in fresh.memory])
    packs = {
        step: payload[1].ctypes.data
        for step, payload in enumerate(fresh.payloads)
        if isinstance(payload, tuple) and len(payload) == 3 and payload[1] is not None
        and isinstance(payload[0], list)
    }  # fmt: skip
    found = placed(layout.rows, bound.table.rows, bound._addresses)
    wanted = placed(expected.rows, fresh.table.rows, homes)
    rooms = scratch_of(bound)
    for step, place in packs.items():
        row, sends = layout.rows[step], layout.rows[step, loop.WAY] == loop.PACKED_SEND
        side = loop.TARGET if sends else loop.SOURCE
        rooms.append((int(row[loop.ADDRESS]), int(row[loop.NBYTES])))
        assert row[loop.ADDRESS] == row[side]
        assert expected.rows[step, loop.ADDRESS] == expected.rows[step, side] == place
        found[step, [loop.ADDRESS, side]] = wanted[step, [loop.ADDRESS, side]] = 0
    assert np.array_equal(found, wanted)
    assert np.array_equal(layout.following, expected.following)
    assert np.array_equal(layout.first_steps, expected.first_steps)
    same = [loop.N_READY, loop.REQUIRED, loop.TOLD, loop.COMBINE, loop.FINISH]
    assert layout.first_state[same].tolist() == expected.first_state[same].tolist()
    assert layout.flights.shape[1] >= expected.flights.shape[1]
    assert len(layout.counts) >= len(expected.counts)
    assert bound.sent == sent_per_level(fresh)
    check_rooms(bound, rooms)


def placed(rows: Any, table: Any, homes: Any) -> Any:
    """Give the rows with places in their buffers instead of addresses."""
    rows = rows.copy()
    block, source = homes[table[:, columns.BLOCK]], homes[table[:, columns.SOURCE]]
    way = rows[:, loop.WAY]
    rows[:, loop.ADDRESS] -= block
    moved = np.isin(way, (loop.REDUCE, loop.COPY))
    rows[moved, loop.SOURCE] -= source[moved]
    rows[moved, loop.TARGET] -= block[moved]
    for kind, side in ((loop.PACKED_SEND, loop.SOURCE), (loop.PACKED_RECEIVE, loop.TARGET)):
        rows[way == kind, side] -= block[way == kind]
    return rows


def scratch_of(bound: Refilled) -> list[tuple[int, int]]:
    """List the places of the scratch buffers, and their bytes."""
    items, units = bound.table.buffers[2:].T
    sizes = items * np.where(units > 0, units, bound.dtype.itemsize)
    return list(zip(bound._addresses[2:].tolist(), sizes.tolist(), strict=True))


def check_rooms(bound: Refilled, rooms: list[tuple[int, int]]) -> None:
    """Check that scratch lies in its array, each part for itself."""
    memory = bound.memory[2]
    assert memory is not None
    low, high = memory.ctypes.data, memory.ctypes.data + memory.nbytes
    for first, nbytes in sorted(room for room in rooms if room[1]):
        assert first % 64 == 0
        assert low <= first
        assert first + nbytes <= high
        low = first + nbytes


@st.composite
def callers(draw: st.DrawFn, operation: str, algorithm: Algorithm) -> Caller:
    """One rank of a topology that the algorithm can serve."""
    commutes = algorithm.commutative or draw(st.booleans())
    problems = [
        Problem(operation, topology, commutative=commutes)
        for topology in TOPOLOGIES
        if algorithm.objection(Problem(operation, topology, commutative=commutes)) is None
    ]
    problem = draw(st.sampled_from(problems))
    root = draw(st.integers(0, problem.size - 1)) if operation in ROOTED else 0
    chosen = Problem(operation, problem.topology, root=root, commutative=commutes)
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8"] if operation in REDUCING else ["u1", "f8"])))
    return Caller(chosen, algorithm, draw(st.integers(0, problem.size - 1)), dtype)


COUNTS = st.one_of(st.integers(0, 9), st.integers(0, 400), st.sampled_from([4096, 20_011, 60_000]))


@pytest.mark.parametrize(
    ("operation", "algorithm"), SHARING, ids=[f"{o}-{a.name}" for o, a in SHARING]
)
def test_a_refilled_plan_is_what_binding_anew_gives(operation: str, algorithm: Algorithm) -> None:
    @given(data=st.data())
    @settings(max_examples=8, deadline=None)
    def check(data: st.DataObject) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if data.draw(st.booleans()):  # else no message here is cut
                patch.setattr(messages, "LONGEST", 1000)
            caller = data.draw(callers(operation, algorithm))
            counts = data.draw(st.lists(COUNTS, min_size=1, max_size=6))
            whole = operation in ("allreduce", "reduce", "bcast", "alltoall", "scan", "exscan")
            for count in [*counts, *counts[::-1]]:
                in_place = whole and data.draw(st.booleans())
                shift = 0 if in_place else data.draw(st.sampled_from([0, 0, 0, 8, 3]))
                caller.call(0 if operation == "barrier" else count, in_place=in_place, shift=shift)

    check()


def test_one_structure_serves_all_counts_of_a_ring() -> None:
    ring = next(a for o, a in SHARING if (o, a.name) == ("allreduce", "ring"))
    caller = Caller(Problem("allreduce", TOPOLOGIES[2]), ring, 1, np.dtype("f8"))
    for count in (1000, 4, 77_777 // 2, 5, 1001, 8):
        assert caller.call(count, in_place=False, shift=0) == at.DONE
    assert len(caller.bounds) == 1
    for count in (0, 1, 3):  # empty blocks leave steps out
        assert caller.call(count, in_place=False, shift=0) == at.DONE
    assert len(caller.bounds) == 4


def test_memory_that_is_too_small_is_refused() -> None:
    ring = next(a for o, a in SHARING if (o, a.name) == ("allreduce", "ring"))
    caller = Caller(Problem("allreduce", TOPOLOGIES[1]), ring, 0, np.dtype("f8"))
    caller.call(100, in_place=False, shift=0)
    (bound,) = caller.bounds
    given, taken = (memory[: 8 * 100] for memory in caller.memory)
    assert bound.refill(100, given, taken) == at.DONE
    assert bound.refill(101, given, taken) == at.REFUSED
    assert bound.refill(100, given, taken) == at.DONE
    assert bound.refill(100, given, taken[1:]) == at.REFUSED
    assert bound.refill(100, None, taken) == at.REFUSED
