"""All-reduce: flat, and over rails, where every network card carries its part.

Over rails, the ports of a group reduce-scatter tier by tier, innermost first.
At the last tier each rail all-reduces its chunk.  Then the tiers all-gather on
the way down [1]_.  For two nodes of two ranks, and a vector of chunks a and b
(rail 0 is ranks 0 and 2, rail 1 is ranks 1 and 3)::

          node 0            node 1
      rank 0  rank 1    rank 2  rank 3

       a b     a b       a b     a b      operands
        +--> <--+         +--> <--+       reduce-scatter in each node
       a         b       a         b      sums of a node
       |         |       |         |
       +---------|-------+         |      rail 0: all-reduce of a
       |         +-------|---------+      rail 1: all-reduce of b
       A         B       A         B      sums of all ranks
        +--> <--+         +--> <--+       all-gather in each node
       A B     A B       A B     A B      results

With equal groups a rank sends ``2 (p_i - 1) / p_i S / (p_1 ... p_(i-1))`` over
tier ``i``, which is the least there is.  Local sums are taken in the order of
members; where groups are runs of ranks this is rank order.

References
----------
.. [1] M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter. BlueConnect:
   decomposing all-reduce for deep learning on heterogeneous network hierarchy.
   MLSys 2019.  Here groups may be uneven: the first members of a
   group own a chunk, the others only contribute.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
    one_shot_allreduce,
    two_shot_allreduce,
)
from closeranks.collectives.builders.patterns.over_vector import order, over_vector
from closeranks.collectives.builders.patterns.recursive_doubling import (
    doubling_allreduce,
    rabenseifner_allreduce,
)
from closeranks.collectives.builders.patterns.ring import ring_allreduce
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    depth,
    doubling_allreduce_rounds,
    rabenseifner_rounds,
)
from closeranks.collectives.builders.patterns.segments import (
    Rounds,
    in_ring,
    in_tree,
    segments,
    slots_of,
)
from closeranks.collectives.builders.patterns.tier_classes import TOPS, vector_classes
from closeranks.collectives.builders.patterns.trees import binomial_bcast, binomial_reduce
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, cut, part
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Members, Stage, Writing
from closeranks.collectives.plans.port_tree import (
    Hierarchy,
    Rail,
    flat,
    flat_or_disordered,
    hierarchy,
)
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    classify,
    from_everybody,
    over_levels,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Schedule


def binomial_allreduce(
    out: Schedule, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce to member 0 and broadcast, in the order of members.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``2 ceil(log2 P)``.
    """
    goal = None if me else target
    summed = yield from binomial_reduce(out, members, me, source, goal, after, slot)
    turns = (len(members) - 1).bit_length()
    spread = yield from binomial_bcast(out, members, me, target, target, summed.over, slot + turns)
    return Stage(spread.done, spread.busy)


def _chunks(problem: Problem) -> Ints:
    return np.diff(problem.count * np.arange(problem.size + 1) // problem.size)


def _ring(problem: Problem) -> Ints:
    return round_the_ring(problem.topology, order(problem), _chunks(problem), reduces=True)


def _doubling(problem: Problem) -> Ints:
    rounds = doubling_allreduce_rounds(problem.size, problem.count)
    return by_rounds(problem.topology, order(problem), rounds)


def _rabenseifner(problem: Problem) -> Ints:
    rounds = rabenseifner_rounds(problem.size, problem.count)
    return by_rounds(problem.topology, order(problem), rounds)


def _binomial(problem: Problem) -> Ints:
    size, items = problem.size, np.full(problem.size, problem.count)
    rounds = (*binomial_up_rounds(size, items), *binomial_down_rounds(size, items))
    return by_rounds(problem.topology, order(problem), rounds, (depth(size),))


def _two_shot(problem: Problem) -> Ints:
    chunks = np.empty(problem.size, dtype=np.int64)
    chunks[order(problem)] = _chunks(problem)
    given = over_levels(problem.topology, chunks)
    messages = over_levels(problem.topology, (chunks > 0).astype(np.int64))
    return classify(problem.size, (*given, *messages, from_everybody(problem.topology, chunks)))


def _one_shot(problem: Problem) -> Ints:
    return from_everybody(problem.topology, np.full(problem.size, problem.count))


ALGORITHMS = (
    Algorithm("ring", over_vector(ring_allreduce), commutative=True, classes=_ring),
    Algorithm("recursive_doubling", over_vector(doubling_allreduce), classes=_doubling),
    Algorithm("rabenseifner", over_vector(rabenseifner_allreduce), classes=_rabenseifner),
    Algorithm("binomial", over_vector(binomial_allreduce), classes=_binomial),
    Algorithm("two_shot", over_vector(two_shot_allreduce), classes=_two_shot),
    Algorithm("one_shot", over_vector(one_shot_allreduce), classes=_one_shot),
)


#: An all-reduce of a group: ``top(out, members, me, source, target, after, slot)``.
Top = Callable[[Schedule, Members, int, Block, Block, After, int], Writing]


def over_rails(
    top: Top, rounds: Rounds = in_tree
) -> Callable[[Schedule, Problem], Generator[None, None, object]]:
    """Return the builder with ``top`` on the rails of the last tier.

    Parameters
    ----------
    top : callable
        All-reduce of a group, for instance `ring_allreduce`.
    rounds : callable
        Its rounds.
    """

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        tree = hierarchy(problem.topology)
        slots = slots_of(tree)
        number = segments(problem, 2 * slots, rounds)
        source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
        for index in range(number):
            here, there = part(source, index, number), part(target, index, number)
            yield from _segment(out, tree, here, there, top, 2 * index * slots)

    return build


def _segment(
    out: Schedule, tree: Hierarchy, source: Block, target: Block, top: Top, slot: int
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


HIERARCHICAL = (
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
