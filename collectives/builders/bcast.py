"""Broadcast: flat, and over rails.

Over rails, the root scatters the vector over the ports of its node, these over
the ports of its site, and so on.  Every rail of the last tier broadcasts its
chunk.  The tiers all-gather on the way down [1]_.  So each network card of the
root's node sends only its part.

References
----------
.. [1] M. Hidayetoglu et al. HiCCL: a hierarchical collective communication
   library. IPDPS 2025 (striping).  Here groups may be uneven.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from closeranks.collectives.builders.patterns.over_vector import order_from_root, seats_from_root
from closeranks.collectives.builders.patterns.recursive_doubling import doubling_allgather
from closeranks.collectives.builders.patterns.ring import ring_allgather
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    depth,
    subtrees,
)
from closeranks.collectives.builders.patterns.segments import (
    Rounds,
    in_either,
    in_tree,
    segments,
    slots_of,
)
from closeranks.collectives.builders.patterns.tier_classes import TOPS, vector_classes
from closeranks.collectives.builders.patterns.trees import (
    binomial_bcast,
    binomial_scatter,
    chain_bcast,
    chain_segments,
)
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, cut, part
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Members, Window, Writing, bring
from closeranks.collectives.plans.port_tree import Hierarchy, Rail, flat, hierarchy
from closeranks.collectives.plans.rank_classes import (
    Ints,
    along_a_chain,
    by_rounds,
    classify,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import After, Schedule

#: Ranks above which a chain is refused.
_LONGEST_CHAIN = 1024


def _binomial(out: Schedule, problem: Problem) -> Writing:
    members, me = seats_from_root(problem, out.rank)
    source, target = Block(INPUT, 0, problem.count), Block(OUTPUT, 0, problem.count)
    return binomial_bcast(out, members, me, source, target, (), 0)


def _binomial_classes(problem: Problem) -> Ints:
    rounds = binomial_down_rounds(problem.size, np.full(problem.size, problem.count))
    members = order_from_root(problem)
    return by_rounds(problem.topology, members, rounds, (depth(problem.size),))


def _scatter_allgather(out: Schedule, problem: Problem) -> Writing:
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


def _chain(out: Schedule, problem: Problem) -> Writing:
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


#: A broadcast from member 0 of a group, in place: ``top(out, members, me, block, after, slot)``.
Top = Callable[[Schedule, Members, int, Block, After, int], Writing]
#: Messages in flight inside a group.
_WIDTH = 32


def over_rails(
    top: Top, rounds: Rounds = in_tree
) -> Callable[[Schedule, Problem], Generator[None, None, object]]:
    """Return the builder with ``top`` on the rails of the last tier.

    Parameters
    ----------
    top : callable
        `whole` or `scattered`.
    rounds : callable
        Its rounds.
    """

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        tree = hierarchy(problem.topology)
        slots = slots_of(tree)
        number = segments(problem, slots, rounds)
        everything = Block(OUTPUT, 0, problem.count)
        for index in range(number):
            block = part(everything, index, number)
            after: After = ()
            if out.rank == problem.root:
                after = bring(out, block._replace(buffer=INPUT), block)
            yield from _segment(out, tree, problem.root, block, after, top, index * slots)

    return build


def whole(
    out: Schedule, members: Members, me: int, block: Block, after: After, slot: int
) -> Writing:
    """Broadcast down a binomial tree: few messages, all of the chunk."""
    return binomial_bcast(out, members, me, block, block, after, slot)


def scattered(
    out: Schedule, members: Members, me: int, block: Block, after: After, slot: int
) -> Writing:
    """Scatter down a binomial tree, then gather everywhere: twice the chunk at most."""
    chunks, size = cut(block, len(members)), len(members)
    got = yield from binomial_scatter(
        out, members, me, lambda low, high: (chunks.span(low, high),), after, slot
    )
    gather = ring_allgather if size & (size - 1) else doubling_allgather
    slot += (size - 1).bit_length()
    return (yield from gather(out, members, me, chunks, got.done, slot, got.busy))


def turned(rail: Rail, start: int) -> tuple[list[int], int]:
    """Members from place ``start`` on, and the own place among them."""
    members = rail.members
    return members[start:] + members[:start], (rail.me - start) % len(members)


def _segment(
    out: Schedule, tree: Hierarchy, root: int, block: Block, ready: After, top: Top, slot: int
) -> Generator[None, None, None]:
    """Write one chain: out of the root's groups, along the rails, and down."""
    climbed: list[tuple[Rail, Chunks]] = []
    for rail in tree.rails(out.rank):
        if rail.tier == tree.depth:
            start = tree.place(rail.tier, root)
            members, me = turned(rail, start)
            spread = yield from top(out, members, me, block, ready, slot)
            ready = spread.done
            break
        chunks = cut(block, rail.owners)
        if is_near(tree, rail.tier, out.rank, root):
            ready = _scatter(out, rail, tree.place(rail.tier, root), chunks, ready, slot)
            yield
        climbed.append((rail, chunks))
        if rail.me < rail.owners:
            block = chunks(rail.me)
    for rail, chunks in reversed(climbed):
        knows = -1
        if is_near(tree, rail.tier, out.rank, root):
            knows = tree.place(rail.tier, root)
        ready += yield from _spread(out, rail, knows, chunks, ready, slot)


def is_near(tree: Hierarchy, tier: int, rank: int, root: int) -> bool:
    """Whether two ranks are in one group of a tier."""
    return bool(tree.rows[tier][rank] == tree.rows[tier][root])


def _scatter(
    out: Schedule, rail: Rail, start: int, chunks: Chunks, ready: After, slot: int
) -> After:
    """Give every owner its chunk; return steps that the own one waits for."""
    if rail.me == start:
        for owner in range(rail.owners):
            if owner != start:
                out.send(rail.members[owner], chunks(owner), slot, ready)
        return ready
    if rail.me < rail.owners:
        return (out.receive(rail.members[start], chunks(rail.me), slot),)
    return ()


def _spread(
    out: Schedule, rail: Rail, knows: int, chunks: Chunks, ready: After, slot: int
) -> Generator[None, None, After]:
    """All-gather the owners' chunks; member ``knows`` has them all already."""
    coming, going = Window(_WIDTH), Window(_WIDTH, ready)
    size = len(rail.members)
    for turn in range(1, size):
        to, source = (rail.me + turn) % size, (rail.me - turn) % size
        if rail.me < rail.owners and to != knows:
            going.admit(out.send(rail.members[to], chunks(rail.me), slot + turn, going.credit()))
        if source < rail.owners and rail.me != knows:
            place = chunks(source)
            coming.admit(out.receive(rail.members[source], place, slot + turn, coming.credit()))
        yield
    return coming.tail()


HIERARCHICAL = (
    Algorithm(
        "hierarchical", over_rails(whole), refuses=flat, classes=vector_classes(TOPS["down"], 1)
    ),
    Algorithm(
        "hierarchical_scatter_allgather",
        over_rails(scattered, in_either),
        refuses=flat,
        classes=vector_classes(TOPS["scattered"], 1, in_either),
    ),
)
