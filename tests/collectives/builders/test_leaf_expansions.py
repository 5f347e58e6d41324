"""Every expansion means what its operation means, alone and one after another."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.leaf_expansions import EXPANSIONS
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import OPERATIONS, ROOTED, Problem, meaning
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Leaf, Schedule
from closeranks.comms.topology.topology import Topology


def operation_of(name: str) -> str:
    """Return the operation that an expansion's name ends with, the longest that fits."""
    return max((o for o in OPERATIONS if name.endswith(f"_{o}")), key=len)


def one_leaf(name: str) -> Algorithm:
    """Return an algorithm of a single native step."""

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        members = tuple(range(problem.size))
        leaf = Leaf(problem.operation, "rank", members, name, problem.root)
        source = Block(INPUT, 0, problem.input_items(out.rank))
        out.native(leaf, source, Block(OUTPUT, 0, problem.output_items(out.rank)))
        yield

    return Algorithm(name, build)


@pytest.mark.parametrize("name", EXPANSIONS)
def test_a_leaf_means_its_operation(name: str) -> None:
    operation = operation_of(name)
    for size in (1, 2, 3, 4, 7, 9):
        for count in (0,) if operation == "barrier" else (1, 5):
            topology = Topology.regular(rank=size)
            root = size // 2 if operation in ROOTED else 0
            problem = Problem(operation, topology, count=count, root=root)
            inputs: list[NDArray[Any]] = [
                np.arange(problem.input_items(rank)) + (1000 << rank) for rank in range(size)
            ]
            found = simulate(Plan(problem, one_leaf(name)), inputs, seed=size)
            for got, want in zip(found, meaning(problem, inputs), strict=True):
                assert want is not None
                assert got.tolist() == want.tolist()
