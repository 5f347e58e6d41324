"""Leaves: the library's collective in the middle of a plan, or the moves it stands for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine.leaves import ISSUES, Native
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, Leaf, Schedule
from tests.mpi.ground import bind, opened, rounds, run, start, toy

Steps = Generator[None, None, None]
COUNT = 12


def leaf(operation: str, members: tuple[int, ...], root: int = 0) -> Leaf:
    return Leaf(operation, "rank", members, "ring_allreduce", root)


def summed(kind: Kind, size: int, group: tuple[int, ...]) -> Plan:
    """Plan an all-reduce of one leaf over ``group``; others copy."""

    def build(out: Schedule, _: Problem) -> Steps:
        whole = Block(OUTPUT, 0, COUNT)
        copied = out.copy(Block(INPUT, 0, COUNT), whole)
        if out.rank in group:
            write = out.native if kind == Kind.NATIVE else out.shared
            write(leaf("allreduce", group), whole, whole, (copied,))
        yield

    return toy(size, build, COUNT)


def check(comm: MPI.Intracomm, kind: Kind, dtype: Any = "f4") -> tuple[int, int]:
    """Run the sum twice; return how many leaves ran natively, how many as moves."""
    with opened(comm) as world:
        plan = summed(kind, comm.size, tuple(range(comm.size)))
        output = np.zeros(COUNT, dtype)
        bound = bind(plan, world, np.arange(COUNT).astype(dtype), output)
        for _ in range(2):
            output[:] = 0
            run(bound)
            np.testing.assert_array_equal(
                output.astype("f4"), comm.size * np.arange(COUNT, dtype="f4")
            )
        again = bind(plan, world, np.arange(COUNT).astype(dtype), output, table=bound.table)
        assert set(again.native) == set(bound.native)
        return len(bound.native), len(bound.written_out)


def test_the_library_runs_what_it_can(comm: MPI.Intracomm) -> None:
    assert check(comm, Kind.NATIVE) == (1, 0)


def test_what_it_has_no_name_for_becomes_moves(comm: MPI.Intracomm) -> None:
    assert check(comm, Kind.NATIVE, ml_dtypes.bfloat16) == (0, 1)


def test_a_shared_leaf_runs_as_a_kernel(comm: MPI.Intracomm) -> None:
    assert check(comm, Kind.SHARED) == ((1, 0) if comm.size > 1 else (0, 1))


def test_a_shared_leaf_without_a_kernel_becomes_moves(comm: MPI.Intracomm) -> None:
    assert check(comm, Kind.SHARED, np.longdouble) == (0, 1)


def test_a_group_has_a_communicator_of_its_own(comm: MPI.Intracomm) -> None:
    group = tuple(range(1, comm.size)) or (0,)
    with opened(comm) as world:
        plan = summed(Kind.NATIVE, comm.size, group)
        data, output = np.full(COUNT, comm.rank, "f4"), np.zeros(COUNT, "f4")
        bound = bind(plan, world, data, output)
        run(bound)
        assert output[0] == (sum(group) if comm.rank in group else comm.rank)
        for native in bound.native.values():
            assert isinstance(native, Native)
            assert native.lane.comm.size == len(group)
            assert native.lane is world.lane(group)


def test_native_steps_are_issued_in_sequence_order(comm: MPI.Intracomm) -> None:
    """Executions become ready in another order on every rank; none meets a stranger."""
    ready = [False] * 4

    def build(out: Schedule, problem: Problem) -> Steps:
        group = tuple(range(problem.size))
        whole = Block(OUTPUT, 0, COUNT)
        copied = out.copy(Block(INPUT, 0, COUNT), whole)
        out.native(leaf("allreduce", group), whole, whole, (out.event(0), copied))
        yield

    plan = toy(comm.size, build, COUNT)
    with opened(comm) as world:
        flights, outputs = [], []
        for number in range(4):
            output = np.zeros(COUNT, "f4")
            data = np.full(COUNT, 10.0**number, "f4")
            event = [lambda number=number: ready[number]]
            flights.append(start(bind(plan, world, data, output, events=event)))
            outputs.append(output)
        for turn in range(4):
            ready[(turn + comm.rank) % 4] = True
            rounds(20)
        for number, flight in enumerate(flights):
            engine().wait(flight)
            assert (outputs[number] == comm.size * 10.0**number).all()


@pytest.mark.parametrize("operation", sorted(ISSUES))
def test_every_native_collective(comm: MPI.Intracomm, operation: str) -> None:
    size, root = comm.size, comm.size - 1
    few = 3

    def build(out: Schedule, _: Problem) -> Steps:
        inner = few if operation == "allgather" else few * size
        outer = few if operation == "reduce_scatter_block" else few * size
        members = tuple(range(size))
        made = leaf(operation, members, root if operation in ("bcast", "reduce") else 0)
        out.native(made, Block(INPUT, 0, inner), Block(OUTPUT, 0, outer))
        yield

    data = np.arange(few * size, dtype="i8") + 100 * comm.rank
    everybody = [np.arange(few * size) + 100 * rank for rank in range(size)]
    mine = slice(few * comm.rank, few * comm.rank + few)
    whole = np.sum(everybody, axis=0)
    expected = {
        "allreduce": whole,
        "reduce": whole if comm.rank == root else np.zeros(few * size),
        "reduce_scatter_block": whole[mine],
        "bcast": everybody[root],
        "allgather": np.concatenate([each[:few] for each in everybody]),
        "alltoall": np.concatenate([each[mine] for each in everybody]),
        "barrier": np.zeros(few * size),
    }[operation]
    with opened(comm) as world:
        output = np.zeros(few * size, "i8")
        run(bind(toy(size, build, few * size), world, data, output))
        np.testing.assert_array_equal(output[: len(expected)], expected)
