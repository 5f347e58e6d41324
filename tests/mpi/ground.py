"""What the tests of the engine stand on: worlds, bound plans, executions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.interpreter import execution as interpreted
from closeranks.collectives.engine.interpreter import prepare
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.collectives.reduction.op import reducer
from closeranks.comms.topology.topology import Topology
from closeranks.comms.wait import Deadline


@contextmanager
def opened(comm: MPI.Intracomm, epoch: int = 0) -> Iterator[World]:
    """Open a world over ``comm``; closed if the body succeeds."""
    world = World(epoch, comm, Topology.regular(node=1, rank=comm.size))
    prepare(world, together=True)
    yield world
    world.close()


def toy(
    size: int, build: Callable[[Schedule, Problem], Generator[None, None, None]], count: int = 4
) -> Plan:
    """Plan an all-reduce of ``count`` elements written by ``build``."""
    problem = Problem("allreduce", Topology.regular(node=1, rank=size), count=count)
    return Plan(problem, Algorithm("toy", build))


def bind(plan: Plan, world: World, data: np.ndarray, output: np.ndarray, **options: Any) -> Bound:
    """Bind with the sum as the reduction."""
    options.setdefault("reducer", reducer(MPI.SUM, data.dtype))
    return Bound(
        plan,
        world.rank,
        input=data.view(np.uint8),
        output=output.view(np.uint8),
        dtype=data.dtype,
        world=world,
        **options,
    )


def start(
    bound: Bound, *, limit_s: float = 20.0, priority: int = 0, background: bool = False
) -> Execution:
    """Start an execution with the world's next number."""
    world = bound.world
    identity = Identity(world.epoch, world.sequence())
    execution = interpreted(bound, identity, priority=priority, deadline=Deadline(limit_s))
    engine().start(execution, background=background)
    return execution


def run(bound: Bound) -> None:
    """Start an execution and wait for its end."""
    engine().drain(start(bound))


def rounds(number: int) -> None:
    """Drive the engine so often, and no thread in between: it would not wait for one."""
    with engine().lock:
        for _ in range(number):
            engine().progress()
