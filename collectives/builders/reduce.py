"""Reduce: flat, and over rails.

Over rails it is the mirror of the hierarchical broadcast.  The tiers
reduce-scatter on the way up.  Every rail of the last tier reduces its chunk to
the root's group.  The ports of that group gather to the root tier by tier.  So
each network card of the root's node takes only its part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from closeranks.collectives.builders.bcast import is_near, turned
from closeranks.collectives.builders.patterns.direct_exchange import direct_reduce_scatter
from closeranks.collectives.builders.patterns.over_vector import (
    order,
    order_from_root,
    seats_from_root,
)
from closeranks.collectives.builders.patterns.recursive_doubling import rabenseifner_reduce
from closeranks.collectives.builders.patterns.ring import ring_reduce_scatter
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_up_rounds,
    rabenseifner_rounds,
)
from closeranks.collectives.builders.patterns.segments import segments, slots_of
from closeranks.collectives.builders.patterns.tier_classes import TOPS, vector_classes
from closeranks.collectives.builders.patterns.trees import binomial_reduce, linear_gather
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, cut, part
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Members, Stage, Writing, seats
from closeranks.collectives.plans.port_tree import Hierarchy, Rail, flat, hierarchy
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    classify,
    levels,
    placed,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Schedule


def _blocks(out: Schedule, problem: Problem) -> tuple[Block, Block | None]:
    """Operand, and result on the root."""
    target = Block(OUTPUT, 0, problem.count) if out.rank == problem.root else None
    return Block(INPUT, 0, problem.count), target


def _binomial(out: Schedule, problem: Problem) -> Writing:
    """To the root; to rank 0, which forwards it, if operands must keep their places."""
    members, me = seats_from_root(problem, out.rank)
    source, target = _blocks(out, problem)
    if members[0] == problem.root:
        return (yield from binomial_reduce(out, members, me, source, target, (), 0))
    last = problem.size.bit_length()
    found = None if me else Block(out.scratch(problem.count), 0, problem.count)
    stage = yield from binomial_reduce(out, members, me, source, found, (), 0)
    if found is not None:
        return Stage((), (out.send(problem.root, found, last, stage.done),))
    if target is not None:
        return Stage((out.receive(members[0], target, last, stage.over),))
    return stage


def _binomial_classes(problem: Problem) -> Ints:
    members = order_from_root(problem)
    rounds = binomial_up_rounds(problem.size, np.full(problem.size, problem.count))
    leads = np.arange(problem.size) == 0
    return by_rounds(problem.topology, members, rounds, (leads,))


def _rabenseifner(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    return rabenseifner_reduce(out, members, me, members.index(problem.root), source, target, (), 0)


def _place_of_root(problem: Problem) -> int:
    return int(np.flatnonzero(order(problem) == problem.root)[0])


def _rabenseifner_classes(problem: Problem) -> Ints:
    rounds = rabenseifner_rounds(problem.size, problem.count, _place_of_root(problem))
    return by_rounds(problem.topology, order(problem), rounds)


def _ring(out: Schedule, problem: Problem) -> Writing:
    """Reduce-scatter round the ring; every rank hands its chunk to the root."""
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    operands, root = cut(source, problem.size), members.index(problem.root)
    if target is None:
        count = operands(me).count
        own = Block(out.scratch(count), 0, count)
        places = cut(source, problem.size)
    else:
        places = cut(target, problem.size)
        own = places(me)
    summed = yield from ring_reduce_scatter(
        out, members, me, operands, own, operands.largest, (), 0
    )
    return (
        yield from linear_gather(out, members, me, root, own, places, summed.over, problem.size)
    )


def _ring_classes(problem: Problem) -> Ints:
    topology, members, size = problem.topology, order(problem), problem.size
    chunks = np.diff(problem.count * np.arange(size + 1) // size)
    root = np.full(size, _place_of_root(problem))
    to_root = placed(members, levels(topology, members, root))
    ring = round_the_ring(topology, members, chunks, reduces=True)
    return classify(size, (ring, to_root))


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("rabenseifner", _rabenseifner, classes=_rabenseifner_classes),
    Algorithm("ring", _ring, commutative=True, classes=_ring_classes),
)


#: A reduction to member 0: ``top(out, members, me, source, target, after, slot)``.
Top = Callable[[Schedule, Members, int, Block, "Block | None", After, int], Writing]


def over_rails(top: Top) -> Callable[[Schedule, Problem], Generator[None, None, object]]:
    """Return the builder with ``top`` on the rails of the last tier.

    Parameters
    ----------
    top : callable
        Reduction to member 0, for instance `binomial_reduce`.
    """

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        tree = hierarchy(problem.topology)
        slots = slots_of(tree)
        number = segments(problem, slots)
        source, target = Block(INPUT, 0, problem.count), None
        for index in range(number):
            here = part(source, index, number)
            if out.rank == problem.root:
                target = here._replace(buffer=OUTPUT)
            yield from _segment(out, tree, problem.root, here, target, top, index * slots)

    return build


def scattered(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block | None,
    after: After,
    slot: int,
) -> Writing:
    """Reduce-scatter by halving, then gather: twice the chunk at most."""
    return rabenseifner_reduce(out, members, me, 0, source, target, after, slot)


def _segment(
    out: Schedule,
    tree: Hierarchy,
    root: int,
    source: Block,
    target: Block | None,
    top: Top,
    slot: int,
) -> Generator[None, None, None]:
    """Write one chain: up, along the rails to the root's group, and to the root."""
    climbed: list[_Climb] = []
    ready: After = ()
    for rail in tree.rails(out.rank):
        if rail.tier == tree.depth:
            members, me = turned(rail, tree.place(rail.tier, root))
            summed = yield from top(out, members, me, source, None if me else target, ready, slot)
            ready = summed.done
            break
        operands = cut(source, rail.owners)
        results = None if target is None else cut(target, rail.owners)
        own = None
        if rail.me < rail.owners:
            own = _room(out, operands(rail.me)) if results is None else results(rail.me)
        stage = yield from direct_reduce_scatter(
            out, rail.members, rail.me, range(rail.owners), operands, own, ready, slot
        )
        climbed.append(_Climb(rail, results, own, stage.over))
        ready = ()
        if own is not None:
            source, target, ready = own, own, stage.done
    for climb in reversed(climbed):
        tier = climb.rail.tier
        if is_near(tree, tier, out.rank, root):
            ready = _gather(out, climb, tree.place(tier, root), ready, slot)
            yield


class _Climb(NamedTuple):
    """A tier on the way up: the chunks of all owners, the own one, its readers."""

    rail: Rail
    results: Chunks | None
    own: Block | None
    free: After


def _room(out: Schedule, like: Block) -> Block:
    return Block(out.scratch(like.count), 0, like.count)


def _gather(out: Schedule, climb: _Climb, start: int, ready: After, slot: int) -> After:
    """Bring the owners' chunks to member ``start``."""
    rail, results = climb.rail, climb.results
    if rail.me != start:
        if climb.own is not None:
            out.send(rail.members[start], climb.own, slot, ready)
        return ()
    assert results is not None
    for owner in range(rail.owners):
        if owner != start:
            ready += (out.receive(rail.members[owner], results(owner), slot, climb.free),)
    return ready


HIERARCHICAL = (
    Algorithm(
        "hierarchical",
        over_rails(binomial_reduce),
        commutative=True,
        refuses=flat,
        classes=vector_classes(TOPS["up"], 1),
    ),
    Algorithm(
        "hierarchical_rabenseifner",
        over_rails(scattered),
        commutative=True,
        refuses=flat,
        classes=vector_classes(TOPS["reduced"], 1),
    ),
)
