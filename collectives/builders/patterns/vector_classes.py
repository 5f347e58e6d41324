"""Which ranks do the same in the hierarchical vector algorithms and barrier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    doubling_allgather_rounds,
    doubling_allreduce_rounds,
    rabenseifner_rounds,
    subtrees,
)
from closeranks.collectives.builders.patterns.segments import Rounds, in_tree, segments, slots_of
from closeranks.collectives.plans.block import bounds
from closeranks.collectives.plans.collective import ROOTED, Problem
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.collectives.plans.rank_classes import Round, classify

Ints = NDArray[np.int64]
#: What each member of a rail sends for a chunk: ``top(members, items)``, by member.
Top = Callable[[int, int], Iterable[Ints]]
#: Up to so many ranks no two that differ by an item share a class.
_EXACT = 1024


def on_rails(rounds: Callable[[int, int], Iterable[Round]]) -> Top:
    """Say what members send, from the rounds of an algorithm.

    Parameters
    ----------
    rounds : callable
        ``rounds(members, items)``, for instance `doubling_allreduce_rounds`.
    """

    def top(members: int, items: int) -> Iterator[Ints]:
        for goal, sent in rounds(members, items):
            yield np.where(goal >= 0, sent, 0)

    return top


def ring_sends(members: int, items: int) -> tuple[Ints, ...]:
    """Say what members of an all-reducing ring do not send: their chunk and the next."""
    chunks = np.diff(np.array(bounds(items, members)))
    return chunks, np.roll(chunks, -1)


def _everything(items: int, members: int) -> Ints:
    return np.full(members, items, dtype=np.int64)


def _scattered(members: int, items: int) -> Iterator[Ints]:
    """Scatter down a tree, then gather: what `scattered` broadcasts send."""
    chunks = np.diff(np.array(bounds(items, members)))
    yield from on_rails(lambda n, _: binomial_down_rounds(n, subtrees(chunks)))(members, items)
    if members & (members - 1):
        yield np.roll(chunks, -1)
    else:
        yield from on_rails(lambda _n, _i: doubling_allgather_rounds(chunks))(members, items)


#: What the rails of each algorithm do.
TOPS: dict[str, Top] = {
    "ring": ring_sends,
    "doubling": on_rails(doubling_allreduce_rounds),
    "rabenseifner": on_rails(rabenseifner_rounds),
    "down": on_rails(lambda n, items: binomial_down_rounds(n, _everything(items, n))),
    "up": on_rails(lambda n, items: binomial_up_rounds(n, _everything(items, n))),
    "scattered": _scattered,
    "reduced": on_rails(lambda n, items: rabenseifner_rounds(n, items, 0)),
}


def vector_classes(top: Top, parts: int, rounds: Rounds = in_tree) -> Callable[[Problem], Ints]:
    """Return the classes of an algorithm that cuts a vector by tiers.

    Parameters
    ----------
    top : callable
        What happens at the last tier.
    parts : int
        Stages that share the message slots, as for `segments`.
    rounds : callable
        Rounds of the last tier, as for `segments`.
    """

    def classes(problem: Problem) -> Ints:
        tree = hierarchy(problem.topology)
        number = segments(problem, parts * slots_of(tree), rounds)
        columns = list(_structure(tree, problem))
        for total in _totals(tree, problem.count, number):
            columns += _chunks(tree, problem, total, top)
        return classify(tree.size, columns)

    return classes


def _totals(tree: Hierarchy, count: int, number: int) -> list[int]:
    """Sizes of segments; on large machines rounded up to what divides evenly.

    There chunks that differ by one item count as equal: cost stays exact in
    messages and wrong by an item a chunk in bytes.
    """
    totals: list[int] = np.unique(np.diff(bounds(count, number))).tolist()
    finest = math.prod(int(tier.owners) for tier in tree.tiers)
    if tree.size <= _EXACT or totals[0] < finest:
        return totals
    return sorted({-(-total // finest) * finest for total in totals})


def leader_classes(top: Top) -> Callable[[Problem], Ints]:
    """Return the classes of an all-reduce whose leaders do ``top``."""

    def classes(problem: Problem) -> Ints:
        tree = hierarchy(problem.topology)
        number = segments(problem, 2 * slots_of(tree))
        columns = list(_leaders(tree))
        for total in _totals(tree, problem.count, number):
            leads = columns[-1] >= 0
            place = tree.places(tree.depth)
            sends = top(int(place.max()) + 1, total)
            columns += [np.where(leads, sent[place], -1) for sent in sends]
        return classify(tree.size, columns)

    return classes


def barrier_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical barrier."""
    tree = hierarchy(problem.topology)
    return classify(tree.size, _leaders(tree))


def _leaders(tree: Hierarchy) -> Iterator[Ints]:
    """Per tier the size of the subtree below a member; -1 where a rank takes no part."""
    active = np.ones(tree.size, dtype=bool)
    for number, tier in enumerate(tree.tiers[:-1], 1):
        place = tree.places(number)
        members = np.diff(tier.starts)[tree.rows[number]]
        subtree = np.where(place > 0, np.minimum(place & -place, members - place), members)
        yield np.where(active, subtree, -1)
        yield np.where(active, place > 0, -1).astype(np.int64)
        active = active & (place == 0)
    yield np.where(active, 0, -1)


def _structure(tree: Hierarchy, problem: Problem) -> Iterator[Ints]:
    """Who is a port, in how large a group, and who is near the root."""
    for number, tier in enumerate(tree.tiers, 1):
        yield tree.is_port[number].astype(np.int64)
        yield np.diff(tier.starts)[tree.rows[number]]
        if problem.operation in ROOTED:
            yield (tree.rows[number] == tree.rows[number][problem.root]).astype(np.int64)
            yield (tree.places(number) == tree.place(number, problem.root)).astype(np.int64)


def _chunks(tree: Hierarchy, problem: Problem, total: int, top: Top) -> Iterator[Ints]:
    """Sizes of a rank's chunks, tier by tier, and what it sends at the last."""
    chunk = np.full(tree.size, total, dtype=np.int64)
    for number, tier in enumerate(tree.tiers[:-1], 1):
        place = tree.places(number)
        chunk = chunk * (place + 1) // tier.owners - chunk * place // tier.owners
        chunk[~tree.is_port[number]] = 0
        yield chunk
    place, members = tree.places(tree.depth), tree.tiers[-1].owners
    if problem.operation in ROOTED:
        place = (place - tree.place(tree.depth, problem.root)) % members
    ports = tree.is_port[tree.depth - 1]
    sent: dict[int, Ints] = {}
    for items in np.unique(chunk[ports]).tolist():
        here = ports & (chunk == items)
        for index, column in enumerate(top(members, items)):
            found = sent.setdefault(index, np.full(tree.size, -1, dtype=np.int64))
            found[here] = column[place[here]]
    yield from sent.values()
