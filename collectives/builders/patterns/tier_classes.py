"""Classes of ranks that do the same in the hierarchical algorithms.

One part a family: the all-gather and reduce-scatter; the all-to-all, gather
and scatter; the vector algorithms (all-reduce, reduce, broadcast) and the
barrier.  See `closeranks.collectives.plans.rank_classes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    doubling_allgather_rounds,
    doubling_allreduce_rounds,
    halving_rounds,
    rabenseifner_rounds,
    subtrees,
)
from closeranks.collectives.builders.patterns.segments import Rounds, in_tree, segments, slots_of
from closeranks.collectives.builders.patterns.two_tiers import NodeTiers, nodes_of
from closeranks.collectives.plans.block import bounds
from closeranks.collectives.plans.collective import ROOTED, Problem
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.collectives.plans.rank_classes import Round, classify

Ints = NDArray[np.int64]


def allgather_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical all-gather, of any blocks."""
    return _classes(problem, doubling_allgather_rounds, ring_skips=-1)


def reduce_scatter_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical reduce-scatter, of any blocks."""
    return _classes(problem, halving_rounds, ring_skips=0)


def _classes(
    problem: Problem, rounds: Callable[[Ints], Iterator[Round]], *, ring_skips: int
) -> Ints:
    tree = hierarchy(problem.topology)
    counts = problem.counts
    if counts is None:
        counts = np.full(tree.size, problem.count, dtype=np.int64)
    columns = list(_shares(tree, counts))
    columns += _top(tree, counts, rounds, ring_skips)
    return classify(tree.size, columns)


def _shares(tree: Hierarchy, counts: Ints) -> Iterator[Ints]:
    """Items a port deals with: for its group, for its rail, in how many pieces."""
    pieces = (counts > 0).astype(np.int64)
    for number in range(tree.depth):
        gateways, is_port = tree.gateways[number], tree.is_port[number]
        keys = tree.rows[number] * tree.ports[number].shape[1] + gateways
        share = _sums(keys, counts)
        chunk = _sums(gateways, counts)
        yield is_port.astype(np.int64)
        yield np.where(is_port, share, -1)
        yield np.where(is_port, chunk, -1)
        yield np.where(is_port, _sums(keys, pieces), -1)
        pieces = (is_port & (share > 0)).astype(np.int64)
        tier = tree.tiers[number]
        above = tree.rows[number + 1]
        yield np.where(is_port, np.diff(tier.starts)[above], -1)
        full = _filled(tree, number + 1, counts)
        yield np.where(is_port, full, -1)


def _filled(tree: Hierarchy, number: int, counts: Ints) -> Ints:
    """How many of the chunks that a port's rail deals out are not empty."""
    owners = tree.tiers[number - 1].owners
    sums = np.bincount(tree.gateways[number], weights=counts)
    filled = (sums.reshape(-1, owners) > 0).sum(axis=1).astype(np.int64)
    found: Ints = filled[tree.gateways[number - 1]]
    return found


def _top(
    tree: Hierarchy, counts: Ints, rounds: Callable[[Ints], Iterator[Round]], ring_skips: int
) -> Iterator[Ints]:
    """Give the items that a port sends along its rail of the last tier."""
    members = tree.tiers[-1].owners
    sums = np.bincount(tree.gateways[-1], weights=counts).astype(np.int64)
    kinds, kind = np.unique(sums.reshape(-1, members), axis=0, return_inverse=True)
    ports = tree.is_port[tree.depth - 1]
    rail = np.where(ports, kind.reshape(-1)[tree.gateways[tree.depth - 1]], -1)
    place = tree.places(tree.depth)
    sent: dict[int, Ints] = {}
    for number, chunks in enumerate(kinds):
        if members & (members - 1):
            table = [np.roll(chunks, ring_skips)]
        else:
            table = [np.where(goal >= 0, items, 0) for goal, items in rounds(chunks)]
        here = rail == number
        for index, column in enumerate(table):
            found = sent.setdefault(index, np.full(tree.size, -1, dtype=np.int64))
            found[here] = column[place[here]]
    yield from sent.values()


def _sums(keys: Ints, weights: Ints) -> Ints:
    """Sum of the weights of all ranks with the same key, for each rank."""
    sums = np.bincount(keys, weights=weights).astype(np.int64)
    found: Ints = sums[keys]
    return found


def alltoall_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical all-to-all; unequal: one a rank."""
    if problem.counts is not None and (problem.local or np.ptp(problem.counts)):
        return np.arange(problem.size)
    nodes, tree = nodes_of(problem.topology), hierarchy(problem.topology)
    rail = nodes.local % nodes.rails
    columns = list(_places(problem, nodes))
    columns.append(np.array([len(members) for members in nodes.members])[nodes.node])
    for row in tree.rows:
        served = np.bincount(row * nodes.rails + rail, minlength=(row.max() + 1) * nodes.rails)
        columns.append(np.where(nodes.local < nodes.rails, served[row * nodes.rails + rail], -1))
        many = np.bincount(row[nodes.local == 0], minlength=row.max() + 1)
        columns.append(many[row])
    return classify(problem.size, columns)


def tree_classes(problem: Problem, *, down: bool) -> Ints:
    """Return the classes of the hierarchical gather, or scatter (``down``)."""
    nodes = nodes_of(problem.topology)
    columns = [*_places(problem, nodes), _near(problem, nodes), _behind(nodes)]
    home, size = int(nodes.node[problem.root]), len(nodes)
    rounds: Callable[[int, Ints], Iterator[Round]]
    rounds = binomial_down_rounds if down else binomial_up_rounds
    turns = (size - 1).bit_length()
    items = np.full((turns, problem.size), -1, dtype=np.int64)
    levels = items.copy()
    served = np.bincount(nodes.node * nodes.rails + nodes.local % nodes.rails)
    for rail in range(nodes.rails):
        members = np.array([*nodes.rail(rail)[home:], *nodes.rail(rail)[:home]])
        counts = served[nodes.node[members] * nodes.rails + rail] * problem.count
        counts[0] = 0
        for turn, (goal, sent) in enumerate(rounds(size, subtrees(counts))):
            items[turn, members] = np.where(goal >= 0, sent, -1)
            across = problem.topology.level_indices(members, members[goal])
            levels[turn, members] = np.where(goal >= 0, across, -1)
    return classify(problem.size, (*columns, *items, *levels))


gather_classes = partial(tree_classes, down=False)
scatter_classes = partial(tree_classes, down=True)


def linear_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical gatherv and scatterv."""
    counts = problem.counts
    assert counts is not None
    nodes = nodes_of(problem.topology)
    rail = nodes.local % nodes.rails
    home = nodes.members[int(nodes.node[problem.root])]
    ports = np.array(home[: nodes.rails])[rail]
    sums = np.bincount(nodes.node * nodes.rails + rail, weights=counts).astype(np.int64)
    columns = [*_places(problem, nodes), _near(problem, nodes), _behind(nodes), counts]
    columns.append(sums[nodes.node * nodes.rails + rail])
    columns.append(problem.topology.level_indices(np.arange(problem.size), ports))
    return classify(problem.size, columns)


def _places(problem: Problem, nodes: NodeTiers) -> Iterator[Ints]:
    """Whether a rank is a port; its place in the node where the node has parts."""
    yield (nodes.local < nodes.rails).astype(np.int64)
    if hierarchy(problem.topology).rows[1].max() + 1 != len(nodes):
        yield nodes.local


def _near(problem: Problem, nodes: NodeTiers) -> Ints:
    """Tell the ranks of the root's node apart."""
    near = nodes.node == nodes.node[problem.root]
    apart = np.where(near, nodes.local + 1, 0)
    apart[problem.root] = -1
    return apart


def _behind(nodes: NodeTiers) -> Ints:
    """How many ranks a port serves."""
    keys = nodes.node * nodes.rails + nodes.local % nodes.rails
    behind: Ints = np.bincount(keys)[keys]
    return behind


#: Items that each member of a rail sends for a chunk: ``top(members, items)``, by member.
Top = Callable[[int, int], Iterable[Ints]]
#: Up to so many ranks no two that differ by an item share a class.
_EXACT = 1024


def on_rails(rounds: Callable[[int, int], Iterable[Round]]) -> Top:
    """Give the items that members send, from the rounds of an algorithm.

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
    """Give items that members of a ring do not send: their chunk and the next."""
    chunks = np.diff(np.array(bounds(items, members)))
    return chunks, np.roll(chunks, -1)


def _everything(items: int, members: int) -> Ints:
    return np.full(members, items, dtype=np.int64)


def _scattered(members: int, items: int) -> Iterator[Ints]:
    """Scatter down a tree, then gather: the items of `scattered` broadcasts."""
    chunks = np.diff(np.array(bounds(items, members)))
    yield from on_rails(lambda n, _: binomial_down_rounds(n, subtrees(chunks)))(members, items)
    if members & (members - 1):
        yield np.roll(chunks, -1)
    else:
        yield from on_rails(lambda _n, _i: doubling_allgather_rounds(chunks))(members, items)


#: The algorithm on the rails, by name.
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
        The algorithm of the last tier.
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
    """Sizes of segments; on large machines rounded up so that they divide.

    There chunks that differ by one item count as equal: cost stays exact in
    messages and wrong by an item a chunk in bytes.
    """
    totals: list[int] = np.unique(np.diff(bounds(count, number))).tolist()
    finest = math.prod(int(tier.owners) for tier in tree.tiers)
    if tree.size <= _EXACT or totals[0] < finest:
        return totals
    return sorted({-(-total // finest) * finest for total in totals})


def leader_classes(top: Top) -> Callable[[Problem], Ints]:
    """Return the classes of an all-reduce with ``top`` among leaders."""

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
    """Ports, the sizes of their groups, and ranks near the root."""
    for number, tier in enumerate(tree.tiers, 1):
        yield tree.is_port[number].astype(np.int64)
        yield np.diff(tier.starts)[tree.rows[number]]
        if problem.operation in ROOTED:
            yield (tree.rows[number] == tree.rows[number][problem.root]).astype(np.int64)
            yield (tree.places(number) == tree.place(number, problem.root)).astype(np.int64)


def _chunks(tree: Hierarchy, problem: Problem, total: int, top: Top) -> Iterator[Ints]:
    """Sizes of a rank's chunks, tier by tier, and its items at the last."""
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
