"""Flat all-reduce."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.over_vector import order, over_vector
from closeranks.collectives.builders.patterns.binomial_tree import binomial_bcast, binomial_reduce
from closeranks.collectives.builders.patterns.direct_exchange import (
    one_shot_allreduce,
    two_shot_allreduce,
)
from closeranks.collectives.builders.patterns.recursive_doubling import doubling_allreduce
from closeranks.collectives.builders.patterns.recursive_halving import rabenseifner_allreduce
from closeranks.collectives.builders.patterns.ring import ring_allreduce
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    depth,
    doubling_allreduce_rounds,
    rabenseifner_rounds,
)
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    classify,
    from_everybody,
    over_levels,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Stage, Writing


def binomial_allreduce(
    out: Script, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce to member 0 and broadcast, in the order of members.

    Parameters
    ----------
    out : Script
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``2 ceil(log2 P)``.
    """
    goal = None if me else target
    summed = yield from binomial_reduce(out, members, me, source, goal, after, slot)
    turns = (len(members) - 1).bit_length()
    spread = yield from binomial_bcast(out, members, me, target, target, summed.over, slot + turns)
    return Stage(spread.done, spread.busy)


def _chunks(problem: Problem) -> Ints:
    return np.diff(problem.count * np.arange(problem.size + 1) // problem.size)


def _ring(problem: Problem) -> Ints:
    return round_the_ring(problem.topology, order(problem), _chunks(problem), reduces=True)


def _doubling(problem: Problem) -> Ints:
    rounds = doubling_allreduce_rounds(problem.size, problem.count)
    return by_rounds(problem.topology, order(problem), rounds)


def _rabenseifner(problem: Problem) -> Ints:
    rounds = rabenseifner_rounds(problem.size, problem.count)
    return by_rounds(problem.topology, order(problem), rounds)


def _binomial(problem: Problem) -> Ints:
    size, items = problem.size, np.full(problem.size, problem.count)
    rounds = (*binomial_up_rounds(size, items), *binomial_down_rounds(size, items))
    return by_rounds(problem.topology, order(problem), rounds, (depth(size),))


def _two_shot(problem: Problem) -> Ints:
    chunks = np.empty(problem.size, dtype=np.int64)
    chunks[order(problem)] = _chunks(problem)
    given = over_levels(problem.topology, chunks)
    messages = over_levels(problem.topology, (chunks > 0).astype(np.int64))
    return classify(problem.size, (*given, *messages, from_everybody(problem.topology, chunks)))


def _one_shot(problem: Problem) -> Ints:
    return from_everybody(problem.topology, np.full(problem.size, problem.count))


ALGORITHMS = (
    Algorithm("ring", over_vector(ring_allreduce), commutative=True, classes=_ring),
    Algorithm("recursive_doubling", over_vector(doubling_allreduce), classes=_doubling),
    Algorithm("rabenseifner", over_vector(rabenseifner_allreduce), classes=_rabenseifner),
    Algorithm("binomial", over_vector(binomial_allreduce), classes=_binomial),
    Algorithm("two_shot", over_vector(two_shot_allreduce), classes=_two_shot),
    Algorithm("one_shot", over_vector(one_shot_allreduce), classes=_one_shot),
)
