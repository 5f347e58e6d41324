"""Flat reduce-scatter, of equal blocks and of given counts."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.over_vector import order
from closeranks.collectives.builders.patterns.direct_exchange import direct_reduce_scatter
from closeranks.collectives.builders.patterns.pairwise_exchange import pairwise_reduce_scatter
from closeranks.collectives.builders.patterns.recursive_halving import halving_reduce_scatter
from closeranks.collectives.builders.patterns.ring import ring_reduce_scatter
from closeranks.collectives.builders.patterns.round_classes import halving_rounds
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, round_the_ring, to_everybody
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Writing, seats


def _blocks(out: Script, problem: Problem) -> tuple[Chunks, Block]:
    """Operands by rank, and the own result."""
    if problem.counts is None:
        operands = even(INPUT, problem.count)
    else:
        operands = packed(INPUT, problem.counts)
    return operands, Block(OUTPUT, 0, operands(out.rank).count)


def _counts(problem: Problem) -> Ints:
    if problem.counts is None:
        return np.full(problem.size, problem.count)
    return problem.counts


def _ring(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    operands, target = _blocks(out, problem)
    return ring_reduce_scatter(
        out, members, me, lambda j: operands(members[j]), target, operands.largest, (), 0
    )


def _ring_classes(problem: Problem) -> Ints:
    members = order(problem)
    return round_the_ring(problem.topology, members, _counts(problem)[members], reduces=True)


def _halving(out: Script, problem: Problem) -> Writing:
    operands, target = _blocks(out, problem)
    return halving_reduce_scatter(out, range(problem.size), out.rank, operands, target, (), 0)


def _halving_classes(problem: Problem) -> Ints:
    return by_rounds(problem.topology, np.arange(problem.size), halving_rounds(_counts(problem)))


def _pairwise(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    operands, target = _blocks(out, problem)
    return pairwise_reduce_scatter(out, members, me, lambda j: operands(members[j]), target, (), 0)


def _direct(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    operands, target = _blocks(out, problem)
    return direct_reduce_scatter(
        out, members, me, range(problem.size), lambda j: operands(members[j]), target, (), 0
    )


def _direct_classes(problem: Problem) -> Ints:
    return to_everybody(problem.topology, _counts(problem))


ALGORITHMS = (
    Algorithm("ring", _ring, commutative=True, classes=_ring_classes),
    Algorithm("recursive_halving", _halving, commutative=True, classes=_halving_classes),
    Algorithm("pairwise", _pairwise, commutative=True, classes=_direct_classes),
    Algorithm("direct", _direct, classes=_direct_classes),
)
