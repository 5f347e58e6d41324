"""A barrier holds everybody until all are there: read off the messages' order."""

from __future__ import annotations

import random

import pytest

from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Kind, Step
from closeranks.comms.topology.topology import Topology

BARRIERS = ALGORITHMS["barrier"]


def heard_of(plan: Plan) -> list[set[int]]:
    """Ranks of which each rank knows, when it is done, that they have entered."""
    scripts = [list(plan.steps(rank)) for rank in range(plan.size)]
    sends: dict[tuple[int, int, int], int] = {}
    for rank, steps in enumerate(scripts):
        for index, step in enumerate(steps):
            if step.kind == Kind.SEND:
                assert (rank, step.peer, step.slot) not in sends
                sends[rank, step.peer, step.slot] = index
    known: dict[tuple[int, int], set[int]] = {}

    def knows(rank: int, index: int) -> set[int]:
        if (rank, index) not in known:
            step: Step = scripts[rank][index]
            found = {rank}
            for earlier in step.after:
                found |= knows(rank, earlier)
            if step.kind == Kind.RECEIVE:
                found |= knows(step.peer, sends[step.peer, rank, step.slot])
            known[rank, index] = found
        return known[rank, index]

    return [
        set().union({rank}, *(knows(rank, index) for index in range(len(steps))))
        for rank, steps in enumerate(scripts)
    ]


@pytest.mark.parametrize("algorithm", BARRIERS, ids=[a.name for a in BARRIERS])
def test_nobody_leaves_before_all_have_entered(algorithm: Algorithm) -> None:
    chance = random.Random(5)
    for size in (*range(1, 18), 33):
        node = [chance.randrange(4) for _ in range(size)]
        for topology in (
            Topology.regular(rank=size),
            Topology.from_groups(("node", "rank"), [node, list(range(size))]),
        ):
            problem = Problem("barrier", topology)
            if not algorithm.objection(problem):
                found = heard_of(Plan(problem, algorithm))
                assert all(heard == set(range(size)) for heard in found), f"{size} ranks"
