"""Alltoallv in which nobody is told what it will receive.

The counts travel first; they place and size the blocks of the second half of
the same plan, and the buffer that takes them is allocated only then.
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
    """Write the plan; reads `Problem.sent_by` only."""
    size, me = problem.size, out.rank
    sent = problem.sent_by(me)
    told = out.constant(sent)
    counts = out.scratch(size, 8)
    starts = out.scratch(size, 8)
    got = [out.copy(Block(told, me, 1), Block(counts, me, 1))]
    for peer in range(size):
        if peer != me:
            out.send(peer, Block(told, peer, 1), slot=0)
            got.append(out.receive(peer, Block(counts, peer, 1), slot=0))
    yield
    bound = 2**62  # nothing is known
    total, begin, length = (
        out.register(bound),
        [out.register(bound) for _ in range(size)],
        [out.register(bound) for _ in range(size)],
    )
    everything = Block(counts, 0, size)
    placed = out.apply(
        "offsets", [everything], [Block(starts, 0, size)], sets=[total], after=tuple(got)
    )
    known = (
        out.apply("numbers", [Block(starts, 0, size)], sets=begin, after=(placed,)),
        out.apply("numbers", [everything], sets=length, after=tuple(got)),
    )
    staged = out.scratch(total)
    here = [Block(staged, begin[peer], length[peer]) for peer in range(size)]
    ends = np.concatenate([[0], np.cumsum(sent)]).tolist()
    mine = Block(INPUT, ends[me], int(sent[me]))
    arrived = [out.copy(mine, here[me], after=known)]
    for peer in range(size):
        if peer != me:
            block = Block(INPUT, ends[peer], int(sent[peer]))
            out.send(peer, block, slot=1, empty=True)
            arrived.append(out.receive(peer, here[peer], slot=1, after=known))
    out.copy(Block(staged, 0, total), Block(OUTPUT, 0, total), after=tuple(arrived))


def exchange(counts: np.ndarray) -> Plan:
    """Plan the exchange of ``counts[sender, receiver]`` elements."""
    size = len(counts)
    problem = Problem("alltoallv", Topology.regular(node=1, rank=size), counts=counts)
    return Plan(problem, Algorithm("counts first", build, symbolic=True))


def example(size: int) -> tuple[Plan, list[np.ndarray], list[np.ndarray]]:
    """Give a plan with uneven counts, zeros among them, its inputs and its outputs."""
    counts = np.array([[(3 * s + 5 * d) % 4 for d in range(size)] for s in range(size)])
    inputs = [np.arange(counts[s].sum(), dtype=np.int32) + 1000 * s for s in range(size)]
    ends = [np.concatenate([[0], np.cumsum(row)]) for row in counts]
    outputs = [
        np.concatenate([inputs[s][ends[s][d] : ends[s][d + 1]] for s in range(size)])
        for d in range(size)
    ]
    return exchange(counts), inputs, outputs
