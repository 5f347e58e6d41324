"""The sum of the first n - 1 of n vectors that arrive at rank 0.

The receives are optional: the sum is there once all but one of the vectors are,
and the last one is received, and dropped, later.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms.topology.topology import Topology


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write the plan."""
    n, size, root = problem.count, problem.size, problem.root
    if out.rank != root:
        out.send(root, Block(INPUT, 0, n))
        return
    yield
    if size == 1:
        out.copy(Block(INPUT, 0, n), Block(OUTPUT, 0, n))
        return
    room = out.scratch(n * size)
    blocks = [Block(room, n * rank, n) for rank in range(size)]
    there = tuple(
        out.copy(Block(INPUT, 0, n), block)
        if rank == root
        else out.receive(rank, block, optional=True)
        for rank, block in enumerate(blocks)
    )
    out.apply(
        "sum_arrived",
        blocks,
        [Block(OUTPUT, 0, n)],
        after=there,
        need=size - 1,
    )


def example(size: int, n: int = 5) -> tuple[Plan, list[np.ndarray]]:
    """Give a plan and its inputs: powers of two, so that every sum names its operands."""
    inputs = [np.full(n, 2**rank, np.int64) for rank in range(size)]
    problem = Problem("reduce", Topology.regular(node=1, rank=size), count=n, itemsize=8)
    return Plan(problem, Algorithm("first of", build)), inputs


def missing(total: np.ndarray, size: int) -> int:
    """Count the vectors that are not in a sum; fails if it is no sum of them."""
    assert (total == total[0]).all()
    assert 0 < total[0] < 2**size
    return size - int(total[0]).bit_count()
