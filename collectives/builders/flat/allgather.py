"""Flat allgather, of equal blocks and of given counts."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.patterns.bruck import bruck_allgather
from closeranks.collectives.builders.patterns.direct_exchange import direct_allgather
from closeranks.collectives.builders.patterns.recursive_doubling import doubling_allgather
from closeranks.collectives.builders.patterns.ring import ring_allgather
from closeranks.collectives.builders.patterns.round_classes import (
    bruck_items,
    doubling_allgather_rounds,
    shift_rounds,
)
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    from_everybody,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Writing, bring, seats


def _place(out: Script, problem: Problem) -> tuple[Chunks, After]:
    """Results by rank, and what the own one, brought there, waits for."""
    if problem.counts is None:
        results = even(OUTPUT, problem.count)
    else:
        results = packed(OUTPUT, problem.counts)
    own = results(out.rank)
    return results, bring(out, Block(INPUT, 0, own.count), own)


def _counts(problem: Problem) -> Ints:
    if problem.counts is None:
        return np.full(problem.size, problem.count)
    return problem.counts


def _ring(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    results, ready = _place(out, problem)
    return ring_allgather(out, members, me, lambda j: results(members[j]), ready, 0)


def _ring_classes(problem: Problem) -> Ints:
    members = problem.order
    return round_the_ring(problem.topology, members, _counts(problem)[members], reduces=False)


def _direct(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    results, ready = _place(out, problem)
    everybody = range(problem.size)
    return direct_allgather(out, members, me, everybody, lambda j: results(members[j]), ready, 0)


def _direct_classes(problem: Problem) -> Ints:
    return from_everybody(problem.topology, _counts(problem))


def _doubling(out: Script, problem: Problem) -> Writing:
    results, ready = _place(out, problem)
    return doubling_allgather(out, range(problem.size), out.rank, results, ready, 0)


def _doubling_classes(problem: Problem) -> Ints:
    rounds = doubling_allgather_rounds(_counts(problem))
    return by_rounds(problem.topology, np.arange(problem.size), rounds)


def _bruck(out: Script, problem: Problem) -> Writing:
    size, count = problem.size, problem.count
    source, target = Block(INPUT, 0, count), Block(OUTPUT, 0, size * count)
    return bruck_allgather(out, range(size), out.rank, source, target, (), 0)


def _bruck_classes(problem: Problem) -> Ints:
    size = problem.size
    rounds = shift_rounds(size, bruck_items(size, problem.count, alltoall=False), down=True)
    return by_rounds(problem.topology, np.arange(size), rounds)


_ANY_COUNTS = (
    Algorithm("ring", _ring, classes=_ring_classes),
    Algorithm("recursive_doubling", _doubling, classes=_doubling_classes),
    Algorithm("direct", _direct, classes=_direct_classes),
)

ALGORITHMS = (*_ANY_COUNTS, Algorithm("bruck", _bruck, classes=_bruck_classes))

ALGORITHMS_V = _ANY_COUNTS
