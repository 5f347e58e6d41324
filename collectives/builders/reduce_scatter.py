"""Reduce-scatter, of equal blocks and of given counts: flat, and over rails.

Over rails it is the mirror of the all-gather.  One copy packs the blocks by
their gateways.  The tiers reduce-scatter on the way up.  A rail of the last
tier brings each group the sums of its own ranks.  Gateways pass them on to
ranks that are no ports.  With N equal nodes a rank sends ``(N - 1) m`` between
nodes.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_reduce_scatter,
    pairwise_reduce_scatter,
)
from closeranks.collectives.builders.patterns.over_vector import order
from closeranks.collectives.builders.patterns.packing_order import Packing
from closeranks.collectives.builders.patterns.recursive_doubling import halving_reduce_scatter
from closeranks.collectives.builders.patterns.ring import ring_reduce_scatter
from closeranks.collectives.builders.patterns.round_classes import halving_rounds
from closeranks.collectives.builders.patterns.tier_classes import reduce_scatter_classes
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Writing, bring, seats
from closeranks.collectives.plans.port_tree import Rail, flat
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, round_the_ring, to_everybody
from closeranks.collectives.plans.schedule import After, Schedule


def _blocks(out: Schedule, problem: Problem) -> tuple[Chunks, Block]:
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


def _ring(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    operands, target = _blocks(out, problem)
    return ring_reduce_scatter(
        out, members, me, lambda j: operands(members[j]), target, operands.largest, (), 0
    )


def _ring_classes(problem: Problem) -> Ints:
    members = order(problem)
    return round_the_ring(problem.topology, members, _counts(problem)[members], reduces=True)


def _halving(out: Schedule, problem: Problem) -> Writing:
    operands, target = _blocks(out, problem)
    return halving_reduce_scatter(out, range(problem.size), out.rank, operands, target, (), 0)


def _halving_classes(problem: Problem) -> Ints:
    return by_rounds(problem.topology, np.arange(problem.size), halving_rounds(_counts(problem)))


def _pairwise(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    operands, target = _blocks(out, problem)
    return pairwise_reduce_scatter(out, members, me, lambda j: operands(members[j]), target, (), 0)


def _direct(out: Schedule, problem: Problem) -> Writing:
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


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a reduce-scatter, of equal or given blocks.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``reduce_scatter_block`` or ``reduce_scatter``.
    """
    packing = Packing(problem)
    order = packing.order
    tree, rank = order.tree, out.rank
    rails = tree.rails(rank)
    here = _Place(packing, INPUT, 0)
    ready: After = ()
    if not order.is_rank_order:
        here = _Place(packing, out.scratch(packing.total), 0)
        ready = packing.pack(out, INPUT, here.buffer)
    for rail in rails[: tree.depth - 1]:
        gateway = int(tree.gateways[rail.tier - 1][rank])
        source = packing.chunks(here.buffer, rail.tier, gateway, here.base)
        target = None
        if rail.me < rail.owners:
            low, high = source.edge(rail.me), source.edge(rail.me + 1)
            there = here
            if here.buffer == INPUT:
                there = _Place(packing, out.scratch(high - low), low)
            target = Block(there.buffer, low + here.base - there.base, high - low)
            here = there
        stage = yield from direct_reduce_scatter(
            out, rail.members, rail.me, range(rail.owners), source, target, ready, 0
        )
        ready = stage.done
    yield from _finish(out, packing, rails, here, ready)


class _Place:
    """A buffer that begins with item ``base`` of the packed vector."""

    def __init__(self, packing: Packing, buffer: int, base: int) -> None:
        self.packing, self.buffer, self.base = packing, buffer, base

    def block(self, low: int, high: int) -> Block:
        """Give packed positions ``low`` to ``high - 1``."""
        return self.packing.block(self.buffer, low, high, self.base)


def _finish(
    out: Schedule, packing: Packing, rails: list[Rail], here: _Place, ready: After
) -> Generator[None, None, None]:
    """Write the last tier, and hand over on the way down."""
    order = packing.order
    tree, rank = order.tree, out.rank
    position = int(order.position[rank])
    own = Block(OUTPUT, 0, packing.edge(position + 1) - packing.edge(position))
    last = rails[-1]
    if last.tier == tree.depth:
        gateway = int(tree.gateways[-2][rank])
        low, high = order.span(tree.depth - 1, int(tree.rows[-2][rank]), gateway)
        source = packing.chunks(here.buffer, tree.depth, gateway, here.base)
        target = own if high - low == 1 else here.block(low, high)
        ready = (yield from _top(out, last, source, target, ready)).done
        if high - low == 1:
            return
    for rail in reversed(rails[: tree.depth - 1]):
        here, ready = _hand_over(out, packing, rail, here, ready)
    bring(out, here.block(position, position + 1), own, ready)


def _top(out: Schedule, rail: Rail, source: Chunks, target: Block, after: After) -> Writing:
    """Reduce-scatter along a rail, in few messages where that costs no bytes."""
    members, me = rail.members, rail.me
    if len(members) & (len(members) - 1) == 0:
        return halving_reduce_scatter(out, members, me, source, target, after, 0)
    return ring_reduce_scatter(out, members, me, source, target, source.largest, after, 0)


def _hand_over(
    out: Schedule, packing: Packing, rail: Rail, here: _Place, ready: After
) -> tuple[_Place, After]:
    """Bring the sums of a gateway for other children to them."""
    if rail.me >= rail.owners:
        low, high = _span(packing, rail, rail.me)
        items = packing.edge(high) - packing.edge(low)
        there = _Place(packing, out.scratch(items), packing.edge(low))
        peer = rail.members[rail.me % rail.owners]
        return there, (out.receive(peer, there.block(low, high)),)
    for child in range(rail.me + rail.owners, len(rail.members), rail.owners):
        out.send(rail.members[child], here.block(*_span(packing, rail, child)), 0, ready)
    return here, ready


def _span(packing: Packing, rail: Rail, child: int) -> tuple[int, int]:
    tree, port = packing.order.tree, rail.members[child]
    tier = rail.tier - 1
    return packing.order.span(tier, int(tree.rows[tier][port]), int(tree.gateways[tier][port]))


HIERARCHICAL = (
    Algorithm(
        "hierarchical", build, commutative=True, refuses=flat, classes=reduce_scatter_classes
    ),
)
