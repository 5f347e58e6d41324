"""Flat gather, of equal blocks and of counts that only the root knows."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.over_vector import turned
from closeranks.collectives.builders.patterns.binomial_tree import binomial_gather, children
from closeranks.collectives.builders.patterns.linear import linear_gather
from closeranks.collectives.builders.patterns.round_classes import binomial_up_rounds, subtrees
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, classify
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import BlockOf, Writing, bring, seats


def wrapped(buffer: int, size: int, root: int, count: int, low: int, high: int) -> list[Block]:
    """Return where places ``[low, high)``, counted from the root, lie in rank order.

    Parameters
    ----------
    buffer : int
        A buffer of ``size`` blocks by rank.
    size, root : int
        Ranks, and the one that is place 0.
    count : int
        Items of a block.
    low, high : int
        Places.
    """
    first, last = root + low, root + high
    if first >= size or last <= size:
        return [Block(buffer, first % size * count, (high - low) * count)]
    return [
        Block(buffer, first * count, (size - first) * count),
        Block(buffer, 0, (last - size) * count),
    ]


def _binomial(out: Script, problem: Problem) -> Writing:
    size, root, count = problem.size, problem.root, problem.count
    members, me = turned(problem, out.rank)
    source = Block(INPUT, 0, count)
    end = max((end for _, end in children(me, size)), default=me + 1)
    if me and end == me + 1:
        return (yield from binomial_gather(out, members, me, lambda *_: (source,), (), 0))
    work = out.scratch((end - me) * count) if me else OUTPUT

    def pieces(low: int, high: int) -> list[Block]:
        if me:
            return [Block(work, (low - me) * count, (high - low) * count)]
        return wrapped(OUTPUT, size, root, count, low, high)

    own = bring(out, source, pieces(me, me + 1)[0])
    return (yield from binomial_gather(out, members, me, pieces, own, 0))


def _binomial_classes(problem: Problem) -> Ints:
    members = np.roll(np.arange(problem.size), -problem.root)
    sizes = subtrees(np.full(problem.size, problem.count))
    leads = np.arange(problem.size) == 0
    rounds = binomial_up_rounds(problem.size, sizes)
    return by_rounds(problem.topology, members, rounds, (leads,))


def _linear(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    root, target = members.index(problem.root), _results(out, problem)
    count = problem.count if problem.counts is None else int(problem.counts[out.rank])
    source = Block(INPUT, 0, count)
    return linear_gather(out, members, me, root, source, lambda j: target(members[j]), (), 0)


def _results(out: Script, problem: Problem) -> BlockOf:
    """Results by rank; only the root asks for them."""
    if problem.counts is None or out.rank != problem.root:
        return even(OUTPUT, problem.count)
    return packed(OUTPUT, problem.counts)


def linear_classes(problem: Problem) -> Ints:
    """Classes of ranks that exchange one message with the root."""
    ranks = np.arange(problem.size)
    root = np.full(problem.size, problem.root)
    level = problem.topology.level_indices(ranks, root).astype(np.int64)
    counts = np.zeros_like(ranks) if problem.counts is None else problem.counts
    return classify(problem.size, (level, ranks == problem.root, counts))


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("linear", _linear, classes=linear_classes),
)

ALGORITHMS_V = (Algorithm("linear", _linear, classes=linear_classes),)
