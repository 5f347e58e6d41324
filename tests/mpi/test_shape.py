"""The shape holds on real ranks: the plans of tests/collectives/test_shape.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Plan
from closeranks.comms.topology.topology import Topology
from closeranks.comms.wait import Deadline
from tests.collectives.shape import counts_exchange, first_of


@pytest.fixture
def ground(comm: MPI.Intracomm | None) -> Iterator[World | None]:
    """A world over `comm`; None on the ranks left out."""
    if comm is None:
        yield None
        return
    world = World(0, comm, Topology.regular(node=1, rank=comm.size))
    yield world
    world.close()


def bind(
    plan: Plan,
    world: World,
    data: np.ndarray,
    output: np.ndarray,
    epilogue: Callable[[], None] | None = None,
) -> Bound:
    return Bound(
        plan,
        world.rank,
        input=data.view(np.uint8),
        output=output.view(np.uint8),
        dtype=data.dtype,
        world=world,
        epilogue=epilogue,
    )


def start(bound: Bound, world: World) -> Execution:
    execution = Execution(bound, Identity(0, world.sequence()), deadline=Deadline(30))
    engine().start(execution)
    return execution


def test_alltoallv_through_a_counts_exchange(comm: MPI.Intracomm, ground: World) -> None:
    plan, inputs, outputs = counts_exchange.example(comm.size)
    output = np.full_like(outputs[comm.rank], -1)
    bound = bind(plan, ground, inputs[comm.rank], output)
    for _ in range(3):  # the buffer a register sized is used again
        output[:] = -1
        engine().wait(start(bound, ground))
        np.testing.assert_array_equal(output, outputs[comm.rank])


def test_sum_of_the_first_all_but_one(comm: MPI.Intracomm, ground: World) -> None:
    plan, inputs = first_of.example(comm.size)
    output = np.zeros(5 if comm.rank == 0 else 0, np.int64)
    told: list[list[int]] = []
    bound = bind(
        plan, ground, inputs[comm.rank], output, epilogue=lambda: told.append(output.tolist())
    )
    late = comm.rank == comm.size - 1 > 0
    comm.Barrier()
    if late:
        time.sleep(0.3)
    began = time.monotonic()
    execution = start(bound, ground)
    engine().wait(execution)
    if comm.rank == 0 and comm.size > 1:
        assert time.monotonic() - began < 0.25
        assert output.tolist() == [2 ** (comm.size - 1) - 1] * 5
        assert not execution.drained
        assert bound.busy
    engine().drain(execution)
    assert execution.drained
    assert told == [output.tolist()], "told once, with the sum in place, and left alone after"
    assert not bound.busy
    assert not engine().in_flight
