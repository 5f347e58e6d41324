"""The plainest all-reduce there is: a ring, reduce-scatter then all-gather."""

from __future__ import annotations

from collections.abc import Generator

from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, bounds
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import NOTHING, Schedule
from closeranks.comms.topology.topology import Topology


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write the plan."""
    n, me, size = problem.count, out.rank, problem.size
    ends = bounds(n, size)
    right, left = (me + 1) % size, (me - 1) % size

    def chunk(number: int) -> Block:
        j = number % size
        return Block(OUTPUT, ends[j], ends[j + 1] - ends[j])

    brought = out.copy(Block(INPUT, 0, n), Block(OUTPUT, 0, n))
    work = out.scratch(n // size + 1)
    reduced, sends = brought, []
    free = NOTHING
    for turn in range(size - 1):
        sends.append(out.send(right, chunk(me - turn), turn, (reduced, brought)))
        block = chunk(me - turn - 1)
        came = Block(work, 0, block.count)
        got = out.receive(left, came, turn, (free,))
        reduced = out.reduce(came, block, (got, brought))
        free = reduced if reduced != NOTHING else free
        yield
    have = reduced
    for turn in range(size - 1):
        out.send(right, chunk(me + 1 - turn), size + turn, (have, brought))
        have = out.receive(left, chunk(me - turn), size + turn, (sends[turn], brought))
        yield


def ring(size: int, count: int, itemsize: int = 4) -> Plan:
    """Plan a ring over ``size`` ranks."""
    topology = Topology.regular(node=1, rank=size)
    problem = Problem("allreduce", topology, count=count, itemsize=itemsize)
    return Plan(problem, Algorithm("toy ring", build, commutative=True))
