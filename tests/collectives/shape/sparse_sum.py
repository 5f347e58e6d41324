"""A toy sparse all-reduce: (index, value) pairs travel, their number is found out.

Every rank compresses its dense vector, sends the pairs to all others in
messages of ``at_most`` as many as it has elements, merges what arrives in the
order of ranks, and writes the dense sum.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.apply_kernels import kernel
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms.topology.topology import Topology

Indices = NDArray[np.int64]
Values = NDArray[Any]


@kernel("toy_compress")
def compress(dense: Values, indices: Indices, values: Values) -> int:
    """Keep what is not zero; returns how many there are."""
    found = np.flatnonzero(dense)
    indices[: len(found)] = found
    values[: len(found)] = dense[found]
    indices[len(found) :] = 0
    values[len(found) :] = 0
    return len(found)


@kernel("toy_merge")
def merge(
    left: Indices, left_values: Values, right: Indices, right_values: Values,
    indices: Indices, values: Values,
) -> int:  # fmt: skip
    """Add two sparse vectors; returns how many entries the sum has."""
    both = np.union1d(left, right)
    total = np.zeros(len(both), left_values.dtype)
    total[np.searchsorted(both, left)] += left_values
    total[np.searchsorted(both, right)] += right_values
    indices[: len(both)], indices[len(both) :] = both, 0
    values[: len(both)], values[len(both) :] = total, 0
    return len(both)


@kernel("toy_spread")
def spread(indices: Indices, values: Values, dense: Values) -> None:
    """Write a sparse vector as a dense one."""
    dense[:] = 0
    dense[indices] = values


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write the plan."""
    n, size, me = problem.count, problem.size, out.rank

    def pairs(items: int) -> tuple[int, int]:
        return out.scratch(items, 8), out.scratch(items)

    mine = out.register(n)
    where, what = pairs(n)
    packed = out.apply(
        "toy_compress", [Block(INPUT, 0, n)], [Block(where, 0, n), Block(what, 0, n)], sets=[mine]
    )
    parts: dict[int, tuple[Block, Block, tuple[int, ...]]] = {
        me: (Block(where, 0, mine), Block(what, 0, mine), (packed,))
    }
    for peer in range(size):
        if peer != me:
            for slot, buffer in enumerate((where, what)):
                out.send(peer, Block(buffer, 0, mine), slot, after=(packed,))
            count = out.register(n)
            where_from, what_from = pairs(count)  # sized by the message itself
            indices, values = Block(where_from, 0, count), Block(what_from, 0, count)
            first = out.receive(peer, indices, 0)
            parts[peer] = indices, values, (out.receive(peer, values, 1, after=(first,)),)
    yield
    indices, values, ready = parts[0]
    for rank in range(1, size):
        more, more_values, there = parts[rank]
        total = out.register(n)
        where, what = pairs(n)
        merged = out.apply(
            "toy_merge",
            [indices, values, more, more_values],
            [Block(where, 0, n), Block(what, 0, n)],
            sets=[total],
            after=(*ready, *there),
        )
        indices, values, ready = Block(where, 0, total), Block(what, 0, total), (merged,)
    out.apply("toy_spread", [indices, values], [Block(OUTPUT, 0, n)], after=ready)


def example(size: int) -> tuple[Plan, list[np.ndarray], list[np.ndarray]]:
    """Give a plan, vectors of which one is all zero, and their sum on every rank."""
    n = 23
    inputs = []
    for rank in range(size):
        dense = np.zeros(n, np.float64)
        dense[(3 * rank + np.arange(4 * (rank != 1))) % n] = rank + 1
        inputs.append(dense)
    problem = Problem("allreduce", Topology.regular(node=1, rank=size), count=n, itemsize=8)
    total = np.sum(inputs, axis=0)
    return Plan(problem, Algorithm("toy sparse", build, symbolic=True)), inputs, [total] * size
