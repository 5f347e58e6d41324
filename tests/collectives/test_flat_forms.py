"""What each flat algorithm sends, copies and keeps: the table of docs/algorithms.md."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from math import ceil, log2
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.catalogue import ALGORITHMS, find
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import ROOTED, VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Kind, Step
from closeranks.comms.topology.topology import Topology
from tests.pace import least_shares


def steps_of(operation: str, name: str, size: int, count: int, rank: int) -> list[Step]:
    problem = Problem(operation, Topology.regular(rank=size), count=count)
    return Plan(problem, find(operation, name)).script(rank)[1]


def items(step: Step) -> int:
    assert isinstance(step.block, Block)
    return step.block.items


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_messages_and_items_of_a_rank(size: int) -> None:
    """The most that any rank sends, for a power of two."""
    n, turns = 3 * size, int(log2(size))
    share = n - n // size
    forms = {
        "allreduce-ring": (2 * (size - 1), 2 * share),
        "allreduce-recursive_doubling": (turns, turns * n),
        "allreduce-rabenseifner": (2 * turns, 2 * share),
        "allreduce-binomial": (turns, turns * n),
        "allreduce-two_shot": (2 * (size - 1), 2 * share),
        "allreduce-one_shot": (size - 1, (size - 1) * n),
        "reduce-binomial": (1, n),
        "reduce-rabenseifner": (turns + 1, share + n // 2),
        "reduce-ring": (size, n),
        "bcast-binomial": (turns, turns * n),
        "bcast-scatter_allgather": (turns + size - 1, 2 * share),
        "bcast-chain": (1, n),
        "reduce_scatter_block-ring": (size - 1, (size - 1) * n),
        "reduce_scatter_block-recursive_halving": (turns, (size - 1) * n),
        "reduce_scatter_block-pairwise": (size - 1, (size - 1) * n),
        "reduce_scatter_block-direct": (size - 1, (size - 1) * n),
        "allgather-ring": (size - 1, (size - 1) * n),
        "allgather-recursive_doubling": (turns, (size - 1) * n),
        "allgather-bruck": (turns, (size - 1) * n),
        "allgather-direct": (size - 1, (size - 1) * n),
        "gather-binomial": (1, size // 2 * n),
        "gather-linear": (1, n),
        "scatter-binomial": (turns, (size - 1) * n),
        "scatter-linear": (size - 1, (size - 1) * n),
        "alltoall-pairwise": (size - 1, (size - 1) * n),
        "alltoall-linear": (size - 1, (size - 1) * n),
        "alltoall-bruck": (turns, turns * size // 2 * n),
        "scan-recursive_doubling": (turns, turns * n),
        "scan-linear": (1, n),
        "exscan-recursive_doubling": (turns, turns * n),
        "exscan-linear": (1, n),
    }
    for key, (messages, carried) in forms.items():
        operation, name = key.split("-")
        sends = [
            [items(s) for s in steps_of(operation, name, size, n, rank) if s.kind == Kind.SEND]
            for rank in range(size)
        ]
        assert max(map(len, sends)) == messages, key
        assert max(map(sum, sends)) == carried, key


@pytest.mark.parametrize("size", range(1, 34))
def test_barriers_take_the_fewest_rounds(size: int) -> None:
    problem = Problem("barrier", Topology.regular(rank=size))
    for rank in range(size):
        steps = Plan(problem, find("barrier", "dissemination")).script(rank)[1]
        assert len(steps) == 2 * ceil(log2(size))


@pytest.mark.parametrize(("name", "bound"), [("ring", 2), ("rabenseifner", 8), ("two_shot", 8)])
def test_scratch_of_an_allreduce_of_large_data(name: str, bound: int) -> None:
    """In chunks: two for a ring; the others no more than the vector."""
    problem = Problem("allreduce", Topology.regular(rank=8), count=800)
    for rank in range(8):
        script, _ = Plan(problem, find("allreduce", name)).script(rank)
        assert sum(buffer.items for buffer in script.buffers[2:]) <= bound * 100


def test_a_ring_copies_its_own_chunk_only() -> None:
    steps = steps_of("allreduce", "ring", 8, 800, 3)
    assert [items(step) for step in steps if step.kind == Kind.COPY] == [100]


def test_recursive_doubling_copies_once_at_most() -> None:
    for size in (2, 3, 7, 8, 13):
        for rank in range(size):
            steps = steps_of("allreduce", "recursive_doubling", size, 5, rank)
            assert sum(step.kind == Kind.COPY for step in steps) <= 1


SUMS = ALGORITHMS["allreduce"]


@pytest.mark.parametrize("algorithm", SUMS, ids=[a.name for a in SUMS])
def test_every_rank_holds_the_same_bits(algorithm: Algorithm) -> None:
    """Whatever the rounding, and however far the order of events differs."""
    chance = np.random.default_rng(7)
    for topology in (
        Topology.regular(node=2, rank=4),
        Topology.regular(rank=7),
        Topology.from_groups(("node", "rank"), [[0, 1, 0, 1, 2, 0], list(range(6))]),
    ):
        problem = Problem("allreduce", topology, count=19)
        if algorithm.objection(problem):
            continue
        inputs: list[Any] = [
            chance.normal(size=19).astype(np.float32) * 10.0 ** chance.integers(-6, 6)
            for _ in range(topology.size)
        ]
        first, *others = simulate(Plan(problem, algorithm), inputs, seed=3)
        again = simulate(Plan(problem, algorithm), inputs, seed=4)[0]
        assert all(np.array_equal(first, other) for other in others)
        assert np.array_equal(first, again)


@pytest.mark.share(3)
@pytest.mark.parametrize("operation", [o for o in ALGORITHMS if o != "alltoallv"])
def test_sixteen_thousand_ranks_are_no_trouble(operation: str) -> None:
    """First step in 1 ms, 3 us a step, 50 ms in all where steps are few.

    The best of five, in processor time: a neighbour's load is not ours.
    """
    size = 16384
    problem = Problem(operation, Topology.regular(node=size // 8, rank=8))
    if operation in VECTOR:
        problem = replace(problem, counts=np.full(size, 2, dtype=np.int64))
    elif operation != "barrier":
        problem = replace(problem, count=size)
    for algorithm in ALGORITHMS[operation]:
        if algorithm.name.startswith("hierarchical"):
            continue
        plan = Plan(problem, algorithm)
        if not algorithm.objection(problem):
            rank = problem.root if operation in ROOTED else 4321
            first, whole = least_shares(partial(_shares, plan, rank))
            assert first < 1, algorithm.name
            assert whole < 1, algorithm.name


def _shares(plan: Plan, rank: int) -> tuple[float, float]:
    """Best of five: time to the first step and to the last, as shares of what it may be."""
    firsts, wholes, (steps, *_) = zip(*(_pace(plan, rank) for _ in range(5)), strict=True)
    return min(firsts) / 1e-3, min(wholes) / max(0.05, 3e-6 * steps)


def _pace(plan: Plan, rank: int) -> tuple[float, float, int]:
    """Seconds to the first step and to the last, and the number of steps."""
    started = time.process_time()
    steps = plan.steps(rank)
    next(steps)
    first = time.process_time() - started
    number = 1 + sum(1 for _ in steps)
    return first, time.process_time() - started, number
