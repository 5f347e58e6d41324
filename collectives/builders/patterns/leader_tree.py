"""Leaders: one rank of each group exchanges all messages with other groups.

Most libraries do this between nodes [1]_: reduce to the node's first rank,
all-reduce among the first ranks, broadcast in the node.  There are few
messages, but one network card carries all of them: for small data, and to
compare rails with.  Groups inside one node work in the memory of the node.

References
----------
.. [1] X. Luo et al. HAN: a hierarchical autotuned collective communication
   framework. IEEE CLUSTER 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from closeranks.collectives.builders.patterns.recursive_doubling import (
    doubling_allreduce,
    rabenseifner_allreduce,
)
from closeranks.collectives.builders.patterns.segments import segments, slots_of
from closeranks.collectives.builders.patterns.tier_classes import TOPS, leader_classes
from closeranks.collectives.builders.patterns.trees import binomial_bcast, binomial_reduce
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, part
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Members, Stage, Writing
from closeranks.collectives.plans.port_tree import Hierarchy, Rail, flat_or_disordered, hierarchy
from closeranks.collectives.plans.schedule import After, Leaf, Schedule

#: An all-reduce of the leaders: ``top(out, members, me, source, target, after, slot)``.
Top = Callable[[Schedule, Members, int, Block, Block, After, int], Writing]
#: So many segments have climbed before the first descends: node memory serves its
#: kernels in the order of the steps, and must not wait for the wire between two of them.
_AHEAD = 2


class _Climb(NamedTuple):
    """A segment: rails with the steps that free its blocks, its result, its slot."""

    rails: list[tuple[Rail, After]]
    block: Block
    ready: After
    slot: int


def through_leaders(top: Top) -> Callable[[Schedule, Problem], Generator[None, None, object]]:
    """Return the builder of an all-reduce with ``top`` among leaders.

    Parameters
    ----------
    top : callable
        All-reduce of a group, for instance `rabenseifner_allreduce`.
    """

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        tree = hierarchy(problem.topology)
        slots = slots_of(tree)
        number = segments(problem, 2 * slots)
        source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
        climbed = []
        for index in range(number):
            here, there = part(source, index, number), part(target, index, number)
            climbed.append((yield from _up(out, tree, here, there, top, 2 * index * slots)))
            if index >= _AHEAD:
                yield from _down(out, tree, climbed[index - _AHEAD], slots)
        for segment in climbed[max(number - _AHEAD, 0) :]:
            yield from _down(out, tree, segment, slots)

    return build


def _up(
    out: Schedule, tree: Hierarchy, source: Block, target: Block, top: Top, slot: int
) -> Generator[None, None, _Climb]:
    """Sum a segment from leader to leader, and among the last of them."""
    rails: list[tuple[Rail, After]] = []
    ready: After = ()
    for rail in tree.rails(out.rank):
        if rail.tier == tree.depth:
            summed = yield from top(out, rail.members, rail.me, source, target, ready, slot)
            ready = summed.over
            break
        stage = yield from _reduce(out, tree, rail, source, target, ready, slot)
        rails.append((rail, stage.over))
        ready = stage.done
        if rail.me:
            break
        source = target
    return _Climb(rails, target, ready, slot)


def _down(
    out: Schedule, tree: Hierarchy, climbed: _Climb, slots: int
) -> Generator[None, None, None]:
    """Hand the sum down the same rails."""
    ready = climbed.ready
    for rail, free in reversed(climbed.rails):
        after = free if rail.me else ready
        stage = yield from _bcast(out, tree, rail, climbed.block, after, climbed.slot + slots)
        ready = stage.done


def _reduce(
    out: Schedule,
    tree: Hierarchy,
    rail: Rail,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    if tree.in_node[rail.tier]:
        leaf = Leaf("reduce", rail.level, tuple(rail.members), "binomial_reduce")
        return Stage((out.shared(leaf, source, target, after, slot),))
    own = None if rail.me else target
    return (yield from binomial_reduce(out, rail.members, rail.me, source, own, after, slot))


def _bcast(
    out: Schedule, tree: Hierarchy, rail: Rail, block: Block, after: After, slot: int
) -> Writing:
    if tree.in_node[rail.tier]:
        leaf = Leaf("bcast", rail.level, tuple(rail.members), "binomial_bcast")
        return Stage((out.shared(leaf, block, block, after, slot),))
    return (yield from binomial_bcast(out, rail.members, rail.me, block, block, after, slot))


ALGORITHMS = (
    Algorithm(
        "leader",
        through_leaders(rabenseifner_allreduce),
        refuses=flat_or_disordered,
        classes=leader_classes(TOPS["rabenseifner"]),
        kernels=True,
        follows=False,
    ),
    Algorithm(
        "leader_doubling",
        through_leaders(doubling_allreduce),
        refuses=flat_or_disordered,
        classes=leader_classes(TOPS["doubling"]),
        kernels=True,
        follows=False,
    ),
)
