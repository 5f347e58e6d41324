"""Ranks of one class send as much over every level; and classes are found fast."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.builders.leaf_expansions import expand
from closeranks.collectives.plans import rank_classes as module
from closeranks.collectives.plans.collective import ROOTED, VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Kind
from closeranks.comms.topology.topology import Topology
from tests.pace import least_shares

WITH_CLASSES = [
    (operation, algorithm)
    for operation, listed in ALGORITHMS.items()
    for algorithm in listed
    if algorithm.classes is not None
]
NAMES = [f"{operation}-{algorithm.name}" for operation, algorithm in WITH_CLASSES]
SIZES = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 17, 33)


def topologies(size: int, chance: random.Random) -> list[Topology]:
    """Equal nodes, and uneven ones whose ranks are dealt round-robin or at random."""
    node = [chance.randrange(3) for _ in range(size)]
    site = [group // 2 for group in node]
    dealt = [rank % 3 for rank in range(size)]
    found = [
        Topology.from_groups(("site", "node", "rank"), [site, node, list(range(size))]),
        Topology.from_groups(("node", "rank"), [dealt, list(range(size))]),
    ]
    if size % 4 == 0:
        found.append(Topology.regular(node=size // 4, rank=4))
    return found


def problems(operation: str, topology: Topology, chance: random.Random) -> list[Problem]:
    size = topology.size
    root = chance.randrange(size) if operation in ROOTED else 0
    problem = Problem(operation, topology, root=root)
    if operation in VECTOR or operation == "alltoallv":
        shape = (size, size) if operation == "alltoallv" else (size,)
        values = [chance.choice([0, 3, 3, 3, 7]) for _ in range(int(np.prod(shape)))]
        return [replace(problem, counts=np.array(values, dtype=np.int64).reshape(shape))]
    counts = (0,) if operation == "barrier" else (size // 2, 4 * size, 4 * size + 3)
    return [replace(problem, count=count) for count in counts]


def sent(plan: Plan, rank: int) -> tuple[Counter[int], Counter[int]]:
    """Messages and items that a rank sends over each level."""
    script, steps = expand(*plan.written(rank, plan.problem))
    messages: Counter[int] = Counter()
    items: Counter[int] = Counter()
    for step in steps:
        if step.kind == Kind.SEND and step.peer != rank:
            level = plan.problem.topology.level_index(rank, step.peer)
            block = step.block
            assert block is not None
            count = block.count if block.count >= 0 else script.registers[~block.count]
            messages[level] += 1
            items[level] += count * block.repeat
    return messages, +items


@pytest.mark.share(3)
@pytest.mark.parametrize(("operation", "algorithm"), WITH_CLASSES, ids=NAMES)
def test_ranks_of_a_class_send_as_much_over_every_level(
    operation: str, algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(module, "_CELLS", 0)
    chance = random.Random(f"{operation} {algorithm.name}")
    for size in SIZES:
        for topology in topologies(size, chance):
            for problem in problems(operation, topology, chance):
                if not algorithm.objection(problem):
                    check(Plan(problem, algorithm))


def check(plan: Plan) -> None:
    classes = plan.classes()
    assert classes.shape == (plan.size,)
    first: dict[int, int] = {}
    for rank, number in enumerate(classes.tolist()):
        stands_for = first.setdefault(number, rank)
        where = f"{plan}: ranks {stands_for} and {rank} of\n{plan.problem.topology}"
        assert sent(plan, rank) == sent(plan, stands_for), where


@pytest.mark.parametrize("operation", [o for o in ALGORITHMS if o != "alltoallv"])
def test_sixteen_thousand_ranks_are_few_classes(operation: str) -> None:
    """Except alltoallv, whose counts alone would be 2 GiB."""
    size = 16384
    problem = Problem(operation, Topology.regular(node=size // 8, rank=8))
    if operation in VECTOR:
        problem = replace(problem, counts=np.full(size, 2, dtype=np.int64))
    elif operation != "barrier":
        problem = replace(problem, count=size)
    for algorithm in ALGORITHMS[operation]:
        if algorithm.classes and not algorithm.objection(problem):
            assert max(least_shares(partial(_seconds, algorithm, problem))) < 1, algorithm.name
            assert len(np.unique(algorithm.classes(problem))) <= 512, algorithm.name


def _seconds(algorithm: Algorithm, problem: Problem) -> list[float]:
    started = time.process_time()
    assert algorithm.classes
    algorithm.classes(problem)
    return [time.process_time() - started]


def test_neighbours_in_a_node_are_told_apart_where_it_is_cheap() -> None:
    few = Problem("allgather", Topology.regular(node=8, rank=4), count=3)
    direct = next(a for a in ALGORITHMS["allgather"] if a.name == "direct")
    assert len(np.unique(Plan(few, direct).classes())) == 4
    many = Problem("allgather", Topology.regular(node=2048, rank=8), count=3)
    assert len(np.unique(Plan(many, direct).classes())) == 1
