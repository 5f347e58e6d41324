"""Which ranks do the same in the hierarchical all-to-all, gather and scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    subtrees,
)
from closeranks.collectives.builders.patterns.two_tiers import Nodes, nodes_of
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import hierarchy
from closeranks.collectives.plans.rank_classes import Round, classify

Ints = NDArray[np.int64]


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


def _places(problem: Problem, nodes: Nodes) -> Iterator[Ints]:
    """Whether a rank is a port; its place in the node where the node has parts."""
    yield (nodes.local < nodes.rails).astype(np.int64)
    if hierarchy(problem.topology).rows[1].max() + 1 != len(nodes):
        yield nodes.local


def _near(problem: Problem, nodes: Nodes) -> Ints:
    """Tell the ranks of the root's node apart."""
    near = nodes.node == nodes.node[problem.root]
    apart = np.where(near, nodes.local + 1, 0)
    apart[problem.root] = -1
    return apart


def _behind(nodes: Nodes) -> Ints:
    """How many ranks a port serves."""
    keys = nodes.node * nodes.rails + nodes.local % nodes.rails
    behind: Ints = np.bincount(keys)[keys]
    return behind
