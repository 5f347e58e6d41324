"""All-reduce over rails: every network card carries its own part of the vector.

Tier by tier, innermost first, the ports of a group reduce-scatter; at the last
tier each rail all-reduces its chunk; then the tiers all-gather on the way down
[1]_.  With equal groups a rank sends ``2 (p_i - 1) / p_i S / (p_1 ...
p_(i-1))`` over tier ``i``, which is the least there is.  Local sums are taken
in the order of members; where groups are runs of ranks this is rank order.

References
----------
.. [1] M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter. BlueConnect:
   decomposing all-reduce for deep learning on heterogeneous network hierarchy.
   MLSys 2019.  Here groups may be uneven: the first members of a
   group own a chunk, the others only contribute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
)
from closeranks.collectives.builders.patterns.recursive_doubling import doubling_allreduce
from closeranks.collectives.builders.patterns.recursive_halving import rabenseifner_allreduce
from closeranks.collectives.builders.patterns.ring import ring_allreduce
from closeranks.collectives.builders.patterns.segments import (
    Rounds,
    in_ring,
    in_tree,
    segments,
    slots_of,
)
from closeranks.collectives.builders.patterns.vector_classes import TOPS, vector_classes
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, part
from closeranks.collectives.plans.chunks import Chunks, cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import (
    Hierarchy,
    Rail,
    flat,
    flat_or_disordered,
    hierarchy,
)
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Writing

#: An all-reduce of a group: ``top(out, members, me, source, target, after, slot)``.
Top = Callable[[Script, Members, int, Block, Block, After, int], Writing]


def over_rails(
    top: Top, rounds: Rounds = in_tree
) -> Callable[[Script, Problem], Generator[None, None, object]]:
    """Return the builder whose rails run ``top`` at the last tier.

    Parameters
    ----------
    top : callable
        All-reduce of a group, for instance `ring_allreduce`.
    rounds : callable
        Its rounds.
    """

    def build(out: Script, problem: Problem) -> Generator[None, None, None]:
        tree = hierarchy(problem.topology)
        slots = slots_of(tree)
        number = segments(problem, 2 * slots, rounds)
        source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
        for index in range(number):
            here, there = part(source, index, number), part(target, index, number)
            yield from _segment(out, tree, here, there, top, 2 * index * slots)

    return build


def _segment(
    out: Script, tree: Hierarchy, source: Block, target: Block, top: Top, slot: int
) -> Generator[None, None, None]:
    """Write one chain: up to the last tier and back."""
    climbed: list[tuple[Rail, Chunks, After]] = []
    ready: After = ()
    for rail in tree.rails(out.rank):
        if rail.tier == tree.depth:
            summed = yield from top(out, rail.members, rail.me, source, target, ready, slot)
            ready = summed.done
            break
        operands, results = cut(source, rail.owners), cut(target, rail.owners)
        is_owner = rail.me < rail.owners
        own = results(rail.me) if is_owner else None
        stage = yield from direct_reduce_scatter(
            out, rail.members, rail.me, range(rail.owners), operands, own, ready, slot
        )
        climbed.append((rail, results, stage.over))
        ready = stage.done if is_owner else ()
        if own is not None:
            source = target = own
    slot += slots_of(tree)
    for rail, results, free in reversed(climbed):
        spread = yield from direct_allgather(
            out, rail.members, rail.me, range(rail.owners), results, ready, slot, free
        )
        ready = (*ready, *spread.done)


ALGORITHMS = (
    Algorithm(
        "hierarchical_rabenseifner",
        over_rails(rabenseifner_allreduce),
        refuses=flat_or_disordered,
        classes=vector_classes(TOPS["rabenseifner"], 2),
    ),
    Algorithm(
        "hierarchical_doubling",
        over_rails(doubling_allreduce),
        refuses=flat_or_disordered,
        classes=vector_classes(TOPS["doubling"], 2),
    ),
    Algorithm(
        "hierarchical_ring",
        over_rails(ring_allreduce, in_ring),
        commutative=True,
        refuses=flat,
        classes=vector_classes(TOPS["ring"], 2, in_ring),
    ),
)
