"""Flat broadcast."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.over_vector import order_from_root, seats_from_root
from closeranks.collectives.builders.patterns.binomial_tree import binomial_bcast, binomial_scatter
from closeranks.collectives.builders.patterns.chain import chain_bcast, chain_segments
from closeranks.collectives.builders.patterns.ring import ring_allgather
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    depth,
    subtrees,
)
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import (
    Ints,
    along_a_chain,
    by_rounds,
    classify,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Writing, bring

#: Ranks above which a chain is refused.
_LONGEST_CHAIN = 1024


def _binomial(out: Script, problem: Problem) -> Writing:
    members, me = seats_from_root(problem, out.rank)
    source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
    return binomial_bcast(out, members, me, source, target, (), 0)


def _binomial_classes(problem: Problem) -> Ints:
    rounds = binomial_down_rounds(problem.size, np.full(problem.size, problem.count))
    members = order_from_root(problem)
    return by_rounds(problem.topology, members, rounds, (depth(problem.size),))


def _scatter_allgather(out: Script, problem: Problem) -> Writing:
    """Scatter down a binomial tree, allgather round a ring (van de Geijn)."""
    members, me = seats_from_root(problem, out.rank)
    results = cut(Block(OUTPUT, 0, problem.count), problem.size)
    given = results if me else cut(Block(INPUT, 0, problem.count), problem.size)
    got = yield from binomial_scatter(
        out, members, me, lambda low, high: (given.span(low, high),), (), 0
    )
    ready = got.done if me else bring(out, given(0), results(0))
    slot = problem.size.bit_length()
    return (yield from ring_allgather(out, members, me, results, ready, slot, got.busy))


def _scatter_allgather_classes(problem: Problem) -> Ints:
    size, members = problem.size, order_from_root(problem)
    chunks = np.diff(problem.count * np.arange(size + 1) // size)
    down = binomial_down_rounds(size, subtrees(chunks))
    tree = by_rounds(problem.topology, members, down, (depth(size),))
    ring = round_the_ring(problem.topology, members, chunks, reduces=False)
    return classify(size, (tree, ring))


def _chain(out: Script, problem: Problem) -> Writing:
    members, me = seats_from_root(problem, out.rank)
    source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
    number = chain_segments(problem.count, problem.itemsize)
    return chain_bcast(out, members, me, source, target, number, (), 0)


def _chain_classes(problem: Problem) -> Ints:
    return along_a_chain(problem.topology, order_from_root(problem))


def _too_long(problem: Problem) -> str | None:
    if problem.size > _LONGEST_CHAIN:
        return (
            f"a chain of {problem.size} ranks hands on {problem.size - 1} times,"
            f" which pays up to {_LONGEST_CHAIN} ranks"
        )
    return None


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("scatter_allgather", _scatter_allgather, classes=_scatter_allgather_classes),
    Algorithm("chain", _chain, refuses=_too_long, classes=_chain_classes),
)
