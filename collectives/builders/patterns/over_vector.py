"""Builders for operations on a whole vector, and the order of their roots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import REDUCING, Problem
from closeranks.collectives.plans.plan_type import Builder, Members, Writing, seats
from closeranks.collectives.plans.rank_classes import Ints
from closeranks.collectives.plans.schedule import After, Schedule

#: ``stage(out, members, me, source, target, after, slot)``.
OverVector = Callable[[Schedule, Members, int, Block, Block, After, int], Writing]


def over_vector(stage: OverVector) -> Builder:
    """Return the builder that runs ``stage`` on all ranks, input to output.

    Parameters
    ----------
    stage : callable
        For instance `ring_allreduce`.
    """

    def build(out: Schedule, problem: Problem) -> Writing:
        members, me = seats(problem, out.rank)
        source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
        return stage(out, members, me, source, target, (), 0)

    return build


def in_rank_order(stage: OverVector) -> Builder:
    """Return the builder that runs ``stage`` on the ranks in their own order.

    Parameters
    ----------
    stage : callable
        For instance `doubling_scan`.
    """

    def build(out: Schedule, problem: Problem) -> Writing:
        source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
        return stage(out, range(problem.size), out.rank, source, target, (), 0)

    return build


def order(problem: Problem) -> Ints:
    """Ranks in the order of `seats`."""
    if problem.operation in REDUCING and not problem.commutative:
        return np.arange(problem.size)
    return problem.order


def order_from_root(problem: Problem) -> Ints:
    """Ranks in the order of `seats`, turned so that the root comes first.

    If operands must not change places, the ranks are not turned.
    """
    ranks = order(problem)
    if problem.operation in REDUCING and not problem.commutative:
        return ranks
    return np.roll(ranks, -int(np.flatnonzero(ranks == problem.root)[0]))


def seats_from_root(problem: Problem, rank: int) -> tuple[list[int], int]:
    """Return `order_from_root` and ``rank``'s place in it."""
    ranks = order_from_root(problem)
    return ranks.tolist(), int(np.flatnonzero(ranks == rank)[0])


def turned(problem: Problem, rank: int) -> tuple[list[int], int]:
    """Return the ranks in their own order, the root first, and ``rank``'s place."""
    root, size = problem.root, problem.size
    return [*range(root, size), *range(root)], (rank - root) % size
