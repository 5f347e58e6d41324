"""Flat scatter, of equal blocks and of counts that only the root knows."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.gather import linear_classes, wrapped
from closeranks.collectives.builders.flat.over_vector import turned
from closeranks.collectives.builders.patterns.binomial_tree import binomial_scatter, children
from closeranks.collectives.builders.patterns.linear import linear_scatter
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    depth,
    subtrees,
)
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, by_rounds
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import BlockOf, Stage, Writing, bring, seats


def _binomial(out: Script, problem: Problem) -> Writing:
    size, root, count = problem.size, problem.root, problem.count
    members, me = turned(problem, out.rank)
    target = Block(OUTPUT, 0, count)
    end = max((end for _, end in children(me, size)), default=me + 1)
    if me and end == me + 1:
        return (yield from binomial_scatter(out, members, me, lambda *_: (target,), (), 0))
    work = out.scratch((end - me) * count) if me else INPUT

    def pieces(low: int, high: int) -> list[Block]:
        if me:
            return [Block(work, (low - me) * count, (high - low) * count)]
        return wrapped(INPUT, size, root, count, low, high)

    got = yield from binomial_scatter(out, members, me, pieces, (), 0)
    return Stage(bring(out, pieces(me, me + 1)[0], target, got.done), got.busy)


def _binomial_classes(problem: Problem) -> Ints:
    members = np.roll(np.arange(problem.size), -problem.root)
    sizes = subtrees(np.full(problem.size, problem.count))
    rounds = binomial_down_rounds(problem.size, sizes)
    return by_rounds(problem.topology, members, rounds, (depth(problem.size),))


def _linear(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    root, source = members.index(problem.root), _operands(out, problem)
    count = problem.count if problem.counts is None else int(problem.counts[out.rank])
    target = Block(OUTPUT, 0, count)
    return linear_scatter(out, members, me, root, lambda j: source(members[j]), target, (), 0)


def _operands(out: Script, problem: Problem) -> BlockOf:
    """Blocks by rank; only the root asks for them."""
    if problem.counts is None or out.rank != problem.root:
        return even(INPUT, problem.count)
    return packed(INPUT, problem.counts)


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("linear", _linear, classes=linear_classes),
)

ALGORITHMS_V = (Algorithm("linear", _linear, classes=linear_classes),)
