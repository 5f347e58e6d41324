"""Reduce over rails: the mirror of the hierarchical broadcast.

The tiers reduce-scatter on the way up; every rail of the last tier reduces its
chunk to the root's group; the ports of that group gather to the root tier by
tier. So each network card of the root's node takes only its part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from closeranks.collectives.builders.hierarchical.bcast import is_near, turned
from closeranks.collectives.builders.patterns.binomial_tree import binomial_reduce
from closeranks.collectives.builders.patterns.direct_exchange import direct_reduce_scatter
from closeranks.collectives.builders.patterns.recursive_halving import rabenseifner_reduce
from closeranks.collectives.builders.patterns.segments import segments, slots_of
from closeranks.collectives.builders.patterns.vector_classes import TOPS, vector_classes
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, part
from closeranks.collectives.plans.chunks import Chunks, cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import Hierarchy, Rail, flat, hierarchy
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Writing

#: A reduction to member 0: ``top(out, members, me, source, target, after, slot)``.
Top = Callable[[Script, Members, int, Block, "Block | None", After, int], Writing]


def over_rails(top: Top) -> Callable[[Script, Problem], Generator[None, None, object]]:
    """Return the builder whose rails run ``top`` at the last tier.

    Parameters
    ----------
    top : callable
        Reduction to member 0, for instance `binomial_reduce`.
    """

    def build(out: Script, problem: Problem) -> Generator[None, None, None]:
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
    out: Script,
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
    out: Script,
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
    """A tier on the way up: the chunks of all owners, the own one, who still reads."""

    rail: Rail
    results: Chunks | None
    own: Block | None
    free: After


def _room(out: Script, like: Block) -> Block:
    return Block(out.scratch(like.count), 0, like.count)


def _gather(out: Script, climb: _Climb, start: int, ready: After, slot: int) -> After:
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


ALGORITHMS = (
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
