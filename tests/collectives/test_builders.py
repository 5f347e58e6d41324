"""The proof: every algorithm of the catalogue, simulated against the standard's meaning.

Whatever is listed is tested: 1 to 17, 33 and 64 ranks, regular and irregular
topologies, every root, counts below the number of ranks and of zero, in place
and not, operands that do not commute, in random order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.analysis.simulation import own_place, simulate
from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.plans.collective import (
    OPERATIONS,
    REDUCING,
    ROOTED,
    VECTOR,
    Problem,
    meaning,
)
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.comms.topology.topology import Topology

LISTED = [(operation, a) for operation in ALGORITHMS for a in ALGORITHMS[operation]]
NAMES = [f"{operation}-{algorithm.name}" for operation, algorithm in LISTED]
SMALL = range(1, 18)
LARGE = (33, 64)


def topologies(size: int, chance: random.Random) -> list[Topology]:
    """Nodes of equal size where that can be; else uneven ones, ranks dealt at random."""
    nodes = chance.choice([1, 2, 3, 4])
    node = [rank % nodes for rank in range(size)]
    chance.shuffle(node)
    site = [group // 2 for group in node]
    irregular = Topology.from_groups(("site", "node", "rank"), [site, node, list(range(size))])
    for rank in (4, 3, 2):
        if size % rank == 0:
            return [Topology.regular(node=size // rank, rank=rank), irregular]
    return [irregular]


def problems(
    operation: str, topology: Topology, chance: random.Random, *, large: bool = False
) -> Iterator[Problem]:
    """Sizes that are awkward: fewer items than ranks, none, and a few that are larger."""
    size = topology.size
    commutative = chance.random() < 0.5
    root = chance.randrange(size) if operation in ROOTED else 0
    problem = Problem(operation, topology, root=root, commutative=commutative)
    if operation == "barrier":
        yield problem
    elif operation == "alltoallv":
        yield replace(problem, counts=draw(chance, (size, size)))
    elif operation in VECTOR:
        yield replace(problem, counts=draw(chance, (size,)))
        if not large:
            yield replace(problem, counts=np.zeros(size, dtype=np.int64), commutative=True)
    else:
        for count in (size // 2 + 1,) if large else {1, 0 if size < 5 else size - 2, size + 3}:
            yield replace(problem, count=count)


def draw(chance: random.Random, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Random counts, many of them zero."""
    values = [chance.choice([0, 0, 1, 2, 5]) for _ in range(int(np.prod(shape)))]
    return np.array(values, dtype=np.int64).reshape(shape)


def inputs_of(problem: Problem) -> list[NDArray[Any]]:
    """Inputs in which every contribution and every place can be told from any other."""
    inputs = []
    for rank in range(problem.size):
        items = range(problem.input_items(rank))
        if problem.operation not in REDUCING:
            inputs.append(np.array([rank * 100_000 + i for i in items], dtype=np.int64))
            continue
        of_rank: NDArray[Any] = np.empty(len(items), dtype=object)
        for i in items:
            commutes = problem.commutative
            of_rank[i] = (i + 1) << (12 * rank) if commutes else f"{rank}:{i} "
        inputs.append(of_rank)
    return inputs


def prove(problem: Problem, algorithm: Algorithm, *, seed: int) -> None:
    """Simulate once and compare; in place where that exists and the seed is odd."""
    inputs = inputs_of(problem)
    plan = Plan(problem, algorithm)
    in_place = seed % 2 == 1 and any(
        own_place(plan, rank) is not None for rank in range(problem.size)
    )
    found = simulate(plan, inputs, op=lambda a, b: a + b, seed=seed, in_place=in_place)
    wanted = meaning(problem, inputs, lambda a, b: a + b)
    for rank, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if want is not None:
            assert got.tolist() == want.tolist(), f"{plan}, rank {rank}, root {problem.root}"


def served(problem: Problem, algorithm: Algorithm) -> Problem | None:
    """The problem, commutative if need be, or None if the algorithm refuses it."""
    if algorithm.commutative:
        problem = replace(problem, commutative=True)
    return None if algorithm.objection(problem) else problem


@pytest.mark.share(6)
@pytest.mark.parametrize(("operation", "algorithm"), LISTED, ids=NAMES)
def test_every_algorithm_on_few_ranks(operation: str, algorithm: Algorithm) -> None:
    chance = random.Random(f"{operation} {algorithm.name}")
    proved = 0
    for size in SMALL:
        for topology in topologies(size, chance):
            for problem in problems(operation, topology, chance):
                asked = served(problem, algorithm)
                if asked is not None:
                    prove(asked, algorithm, seed=proved)
                    proved += 1
    assert proved > 5


@pytest.mark.share(6)
@pytest.mark.parametrize(("operation", "algorithm"), LISTED, ids=NAMES)
def test_every_algorithm_on_more_ranks(operation: str, algorithm: Algorithm) -> None:
    chance = random.Random(f"{algorithm.name} {operation}")
    for size in LARGE:
        topology = chance.choice(topologies(size, chance))
        for problem in problems(operation, topology, chance, large=True):
            asked = served(problem, algorithm)
            if asked is not None:
                prove(asked, algorithm, seed=size + chance.randrange(2))


@pytest.mark.parametrize("operation", sorted(ROOTED))
def test_every_root(operation: str) -> None:
    chance = random.Random(operation)
    for algorithm in ALGORITHMS[operation]:
        for size in (2, 5, 8):
            topology = chance.choice(topologies(size, chance))
            for root in range(size):
                for problem in problems(operation, topology, chance):
                    asked = served(replace(problem, root=root), algorithm)
                    if asked is not None:
                        prove(asked, algorithm, seed=root)


def test_every_operation_is_served_whatever_the_topology() -> None:
    assert set(ALGORITHMS) == set(OPERATIONS)
    for operation in OPERATIONS:
        alone = Problem(operation, Topology.regular(rank=1), commutative=False)
        free = [a.name for a in ALGORITHMS[operation] if not a.objection(alone)]
        assert free, f"{operation}: no algorithm serves one rank in rank order"
        names = [algorithm.name for algorithm in ALGORITHMS[operation]]
        assert len(names) == len(set(names))
