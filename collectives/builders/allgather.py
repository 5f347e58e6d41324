"""All-gather, of equal blocks and of given counts: flat, and over rails.

Over rails, every network card carries its own shards.  A rank gives its block
to its gateway; most ranks are their own gateways.  The rails of the last tier
gather, then the tiers spread on the way down, and one copy brings the blocks
from packed to rank order [1]_.  With N equal nodes a rank sends ``(N - 1) m``
between nodes, which is the least there is.

References
----------
.. [1] S. Singh et al. The Big Send-off: high performance collectives on
   GPU-based supercomputers. arXiv:2504.18658, 2025 (two-dimensional
   all-gather).  Here a table of ranks takes the place of the transpose, so
   any map and uneven nodes work.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from closeranks.collectives.builders.patterns.bruck import bruck_allgather
from closeranks.collectives.builders.patterns.direct_exchange import direct_allgather
from closeranks.collectives.builders.patterns.packing_order import Packing
from closeranks.collectives.builders.patterns.recursive_doubling import doubling_allgather
from closeranks.collectives.builders.patterns.ring import ring_allgather
from closeranks.collectives.builders.patterns.round_classes import (
    bruck_items,
    doubling_allgather_rounds,
    shift_rounds,
)
from closeranks.collectives.builders.patterns.tier_classes import allgather_classes
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Members, Writing, bring, seats
from closeranks.collectives.plans.port_tree import Rail, flat
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    from_everybody,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Schedule


def _place(out: Schedule, problem: Problem) -> tuple[Chunks, After]:
    """Results by rank, and the steps that the own one waits for."""
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


def _ring(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    results, ready = _place(out, problem)
    return ring_allgather(out, members, me, lambda j: results(members[j]), ready, 0)


def _ring_classes(problem: Problem) -> Ints:
    members = problem.order
    return round_the_ring(problem.topology, members, _counts(problem)[members], reduces=False)


def _direct(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    results, ready = _place(out, problem)
    everybody = range(problem.size)
    return direct_allgather(out, members, me, everybody, lambda j: results(members[j]), ready, 0)


def _direct_classes(problem: Problem) -> Ints:
    return from_everybody(problem.topology, _counts(problem))


def _doubling(out: Schedule, problem: Problem) -> Writing:
    results, ready = _place(out, problem)
    return doubling_allgather(out, range(problem.size), out.rank, results, ready, 0)


def _doubling_classes(problem: Problem) -> Ints:
    rounds = doubling_allgather_rounds(_counts(problem))
    return by_rounds(problem.topology, np.arange(problem.size), rounds)


def _bruck(out: Schedule, problem: Problem) -> Writing:
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


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-gather; also of one with given counts.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``allgather`` or ``allgatherv``.
    """
    packing = Packing(problem)
    order = packing.order
    tree, rank = order.tree, out.rank
    buffer = OUTPUT if order.is_rank_order else out.scratch(packing.total)
    position = int(order.position[rank])
    own = packing.block(buffer, position, position + 1)
    ready = bring(out, Block(INPUT, 0, own.count), own)
    rails = tree.rails(rank)
    free: After = ()
    for rail in rails[: tree.depth - 1]:
        yield
        if rail.me >= rail.owners:
            free = _hand_in(out, packing, rail, rail.me, buffer, ready)
            ready = ()
            break
        for child in range(rail.me + rail.owners, len(rail.members), rail.owners):
            ready += _collect(out, packing, rail, child, buffer)
    else:
        chunks = packing.chunks(buffer, tree.depth, int(tree.gateways[-2][rank]))
        ready = (yield from _top(out, rails[-1].members, rails[-1].me, chunks, ready)).done
    for rail in reversed(rails[: tree.depth - 1]):
        chunks = packing.chunks(buffer, rail.tier, int(tree.gateways[rail.tier - 1][rank]))
        stage = yield from direct_allgather(
            out, rail.members, rail.me, range(rail.owners), chunks, ready, 1, free
        )
        ready += stage.done
    if buffer != OUTPUT:
        packing.unpack(out, buffer, OUTPUT, ready)


def _top(out: Schedule, members: Members, me: int, chunks: Chunks, after: After) -> Writing:
    """Gather along a rail of the last tier, in few messages where it is free."""
    if len(members) & (len(members) - 1) == 0:
        return doubling_allgather(out, members, me, chunks, after, 0)
    return ring_allgather(out, members, me, chunks, after, 0)


def _hand_in(
    out: Schedule, packing: Packing, rail: Rail, child: int, buffer: int, after: After
) -> After:
    gateway = rail.members[child % rail.owners]
    return (out.send(gateway, _share(packing, rail, child, buffer), 0, after),)


def _collect(out: Schedule, packing: Packing, rail: Rail, child: int, buffer: int) -> After:
    return (out.receive(rail.members[child], _share(packing, rail, child, buffer)),)


def _share(packing: Packing, rail: Rail, child: int, buffer: int) -> Block:
    """Give the blocks that the port of a child carries for its group."""
    tree, port = packing.order.tree, rail.members[child]
    group = int(tree.rows[rail.tier - 1][port])
    gateway = int(tree.gateways[rail.tier - 1][port])
    return packing.block(buffer, *packing.order.span(rail.tier - 1, group, gateway))


HIERARCHICAL = (Algorithm("hierarchical", build, refuses=flat, classes=allgather_classes),)
