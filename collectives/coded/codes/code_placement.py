"""Which worker runs on which node, so that any one node may be lost.

Pure: a placement is an array, worker -> node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.comms.topology import Topology
from closeranks.errors import UsageError

#: Sets of workers that `search` looks at, at most.
MOST_TRIES: Final = 4000


def node_of_ranks(topology: Any, n: int) -> NDArray[np.int64]:
    """Give the node of each rank; a topology without nodes is one node.

    Parameters
    ----------
    topology : Topology
        Of `n` ranks.
    n : int
        Workers of the code.

    Returns
    -------
    ndarray, shape (n,), dtype int64
        Rank -> node.

    Raises
    ------
    UsageError
        If it is no topology, or one of another number of ranks.
    """
    argument.instance("place", "topology", topology, Topology, "give a Topology")
    if topology.size != n:
        problem = f"the topology has {topology.size} ranks, the code {n} workers"
        raise UsageError("place", problem, "give one rank a worker")
    if "node" not in topology.levels:
        return np.zeros(n, np.int64)
    return np.array(topology.groups[topology.position("node")], np.int64)


def ranks_of_workers(
    node_of_worker: NDArray[np.int64], node_of_rank: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give the rank of each worker; in a node, ranks and workers ascend together."""
    ranks = np.empty(len(node_of_rank), np.int64)
    ranks[np.argsort(node_of_worker, kind="stable")] = np.argsort(node_of_rank, kind="stable")
    return ranks


def spread_groups(groups: Sequence[int], node_of_rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the members of a group apart.

    The ranks stand in a row, node after node.  The first members of all groups
    come first and the last members come last, both in the order of groups; the
    others stand between them, by their place in their group.  The first and the
    last member of a group then have ``n - g`` steps between them, for ``n`` ranks
    and ``g`` groups.  So if each group has two members and no node more than
    ``n - g`` ranks, no group is in one node.  If a node has more, fewer than
    ``g`` ranks are outside of it: some group is inside, whatever the order.

    Parameters
    ----------
    groups : sequence of int
        Worker -> group.
    node_of_rank : ndarray of int
        Rank -> node.

    Returns
    -------
    ndarray of int
        Worker -> node.
    """
    group = np.asarray(groups)
    members = np.bincount(group)
    order = np.argsort(group, kind="stable")
    begin = np.cumsum(members) - members
    place = np.empty(len(group))
    place[order] = np.arange(len(group)) - begin[group[order]]
    depth = place / np.maximum(members[group] - 1, 1)
    node_of_worker = np.empty(len(group), np.int64)
    node_of_worker[np.lexsort((group, depth))] = np.sort(node_of_rank)
    return node_of_worker


def search(
    node_of_rank: NDArray[np.int64], has_sum: Callable[[frozenset[int]], bool]
) -> tuple[NDArray[np.int64], bool]:
    """Find a placement without which node ever the sum can be had.

    Tried are worker ``i`` on the node of rank ``i``, then the nodes in turns, then
    all placements, node by node from the largest, up to `MOST_TRIES` sets.

    Parameters
    ----------
    node_of_rank : ndarray of int
        Rank -> node.
    has_sum : callable
        Tells whether the sum can be had from a set of workers.

    Returns
    -------
    (ndarray of int, bool)
        Worker -> node, for the nodes in turns if none was found; and whether all
        were tried or one was found.
    """
    n = len(node_of_rank)
    every = frozenset(range(n))
    turns = _in_turns(node_of_rank)
    for candidate in (node_of_rank, turns):
        if lost_node(candidate, has_sum) is None:
            return candidate, True
    sizes = np.bincount(node_of_rank)
    nodes = sorted(range(len(sizes)), key=lambda node: (-sizes[node], node))
    tries = 0

    def sets(left: frozenset[int], size: int) -> Iterator[frozenset[int]]:
        """Give the sets of workers that a node may have."""
        nonlocal tries
        for some in combinations(sorted(left), size):
            tries += 1
            if tries > MOST_TRIES:
                return
            if has_sum(every.difference(some)):
                yield frozenset(some)

    left, chosen = every, list[frozenset[int]]()
    waiting = [sets(left, sizes[nodes[0]])]
    while waiting:
        some = next(waiting[-1], None)
        if some is None:
            waiting.pop()
            if chosen:
                left |= chosen.pop()
            continue
        chosen.append(some)
        left -= some
        if len(chosen) == len(nodes):
            found = np.empty(n, np.int64)
            for node, workers in zip(nodes, chosen, strict=True):
                found[list(workers)] = node
            return found, True
        waiting.append(sets(left, sizes[nodes[len(chosen)]]))
    return turns, tries <= MOST_TRIES


def lost_node(
    node_of_worker: NDArray[np.int64], has_sum: Callable[[frozenset[int]], bool]
) -> int | None:
    """Give the largest node without which the sum cannot be had, or None."""
    sizes = np.bincount(node_of_worker)
    for node in np.argsort(-sizes, kind="stable").tolist():
        if not has_sum(frozenset(np.flatnonzero(node_of_worker != node).tolist())):
            return int(node)
    return None


def _in_turns(node_of_rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the workers to the nodes in turns, as long as a node has ranks."""
    order = np.argsort(node_of_rank, kind="stable")
    sizes = np.bincount(node_of_rank)
    begin = np.cumsum(sizes) - sizes
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - begin[node_of_rank[order]]
    return np.array(node_of_rank[np.lexsort((node_of_rank, turn))], np.int64)
