"""Leaders: one rank of each group does all the talking to other groups.

What most libraries do between nodes [1]_: reduce to the node's first rank,
all-reduce among those, broadcast in the node.  Few messages, but one network
card carries everything: for small data, and to compare rails with.

References
----------
.. [1] X. Luo et al. HAN: a hierarchical autotuned collective communication
   framework. IEEE CLUSTER 2020.
"""

from __future__ import annotations

from collections.abc import Generator

from closeranks.collectives.binomial import binomial_bcast, binomial_reduce
from closeranks.collectives.block import INPUT, OUTPUT, Block, part
from closeranks.collectives.halving import rabenseifner_allreduce
from closeranks.collectives.hierarchical.segments import segments, slots_of
from closeranks.collectives.hierarchical.vector_roles import leader_classes
from closeranks.collectives.hierarchy import Hierarchy, Rail, flat_or_disordered, hierarchy
from closeranks.collectives.plan import Algorithm
from closeranks.collectives.problem import Problem
from closeranks.collectives.script import After, Script


def leader_allreduce(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-reduce through leaders, at any number of tiers.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``allreduce``.
    """
    tree = hierarchy(problem.topology)
    slots = slots_of(tree)
    number = segments(problem, 2 * slots)
    source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
    for index in range(number):
        here, there = part(source, index, number), part(target, index, number)
        yield from _segment(out, tree, here, there, 2 * index * slots)


def _segment(
    out: Script, tree: Hierarchy, source: Block, target: Block, slot: int
) -> Generator[None, None, None]:
    climbed: list[tuple[Rail, After]] = []
    ready: After = ()
    for rail in tree.rails(out.rank):
        members, me = rail.members, rail.me
        if rail.tier == tree.depth:
            summed = yield from rabenseifner_allreduce(
                out, members, me, source, target, ready, slot
            )
            ready = summed.over
            break
        own = None if me else target
        stage = yield from binomial_reduce(out, members, me, source, own, ready, slot)
        climbed.append((rail, stage.over))
        ready = stage.done
        if me:
            break
        source = target
    for rail, free in reversed(climbed):
        after = free if rail.me else ready
        spread = yield from binomial_bcast(
            out, rail.members, rail.me, target, target, after, slot + slots_of(tree)
        )
        ready = spread.done


ALGORITHMS = (
    Algorithm("leader", leader_allreduce, refuses=flat_or_disordered, classes=leader_classes),
)
