"""Two tiers only: ranks, and the groups that exchange between them.

All-to-all, gather and scatter need no third tier: between nodes every byte
crosses once, whatever lies further out.  The group is the node if the topology
names one with several ranks, else the innermost group.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block, runs
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.comms.topology.topology import Topology

Ints = NDArray[np.int64]


class RankRun(NamedTuple):
    """Places ``at``, ``at + 1``, ... of a list hold ``rank``, ``rank + stride``, ..."""

    at: int
    rank: int
    repeat: int
    stride: int


class NodeTiers:
    """Nodes, the ranks in them and their gateways; computed once, see `nodes_of`.

    Parameters
    ----------
    node : ndarray of int64, shape (size,)
        Node of each rank, numbered in order of first rank.

    Attributes
    ----------
    node : ndarray of int64, shape (size,)
        As given.
    members : list of list of int
        Ranks of each node, ascending.
    local : ndarray of int64, shape (size,)
        Place of each rank in its node.
    rails : int
        Least number of ranks of a node: ``members[n][:rails]`` are its ports.
    order : list of int
        All ranks, node by node.
    widths : list of list of int
        Per rail how many ranks its port in each node serves.
    """

    def __init__(self, node: Ints) -> None:
        self.node = node
        sizes = np.bincount(node)
        order = np.argsort(node, kind="stable")
        ends = np.cumsum(sizes)
        self.order: list[int] = order.tolist()
        self.members: list[list[int]] = [part.tolist() for part in np.split(order, ends[:-1])]
        self.local = np.empty_like(node)
        self.local[order] = np.arange(len(node)) - np.repeat(ends - sizes, sizes)
        self.rails = int(sizes.min())
        behind = np.bincount(node * self.rails + self.local % self.rails)
        self.widths: list[list[int]] = behind.reshape(-1, self.rails).T.tolist()
        self._through: dict[int, tuple[list[int], list[RankRun]]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def through(self, rail: int) -> tuple[list[int], list[RankRun]]:
        """Ranks that a rail serves, node by node, and the same folded; computed once."""
        if rail not in self._through:
            order = np.array(self.order)
            ranks: list[int] = order[self.local[order] % self.rails == rail].tolist()
            self._through[rail] = ranks, folds(ranks)
        return self._through[rail]

    @cached_property
    def folded(self) -> list[RankRun]:
        """`order`, folded."""
        return folds(self.order)

    def served(self, node: int, rail: int) -> list[int]:
        """Ranks of a node with its port ``rail`` as gateway, the port first."""
        return self.members[node][rail :: self.rails]

    def rail(self, rail: int) -> list[int]:
        """Port ``rail`` of every node."""
        return [members[rail] for members in self.members]


@lru_cache(maxsize=32)
def nodes_of(topology: Topology) -> NodeTiers:
    """Return the nodes of a topology, computed once for equal topologies."""
    tree = hierarchy(topology)
    return NodeTiers(tree.rows[_tier(topology, tree)])


def _tier(topology: Topology, tree: Hierarchy) -> int:
    """Tier of the nodes: never that of ranks, never that of the whole machine."""
    if "node" in topology.levels:
        wanted = topology.count("node")
        counts = [int(row.max()) + 1 for row in tree.rows]
        if wanted in counts:
            return min(max(counts.index(wanted), 1), tree.depth - 1)
    return 1


def folds(ranks: list[int]) -> list[RankRun]:
    """Fold a list of ranks to arithmetic progressions."""
    found, at = [], 0
    for rank, repeat, stride in runs(ranks, 1):
        found.append(RankRun(at, rank, repeat, stride))
        at += repeat
    return found


def pieces(found: list[RankRun], buffer: int, count: int) -> list[tuple[int, Block]]:
    """Blocks of folded ranks in a buffer in rank order, each with its place."""
    blocks = []
    for at, rank, repeat, stride in found:
        if repeat == 1 or stride == 1:
            blocks.append((at, Block(buffer, rank * count, repeat * count)))
        else:
            blocks.append((at, Block(buffer, rank * count, count, repeat, stride * count)))
    return blocks
