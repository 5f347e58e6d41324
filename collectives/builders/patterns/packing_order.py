"""The order in which blocks are packed, so that stages move whole runs.

A rank's block passes through its gateways.  Packed order sorts the ranks by
their gateways, innermost tier first, then by outermost group, then by the
rest.  So the blocks of one port are one run at every tier, on the way up and
on the way down, for any map from ranks to nodes.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block, Chunks, runs
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.collectives.plans.schedule import After, Schedule
from closeranks.comms.topology.topology import Topology

Ints = NDArray[np.int64]


class Order:
    """Packed order of the ranks of a topology; computed once, see `order_of`.

    Parameters
    ----------
    tree : Hierarchy
        Ports of the topology.

    Attributes
    ----------
    ranks : ndarray of int64, shape (size,)
        Rank at each position.
    position : ndarray of int64, shape (size,)
        Position of each rank.
    edges : list of ndarray of int64
        Per tier the position at which each gateway's run starts, and the end.
    pieces : list of (int, int, int, int)
        Positions folded: ``position, rank, repeat, stride`` of one progression.
    """

    def __init__(self, tree: Hierarchy) -> None:
        self.tree = tree
        middle = range(1, tree.depth)
        owners = [tier.owners for tier in tree.tiers]
        places = {tier: tree.places(tier) for tier in range(1, tree.depth + 1)}
        keys = [places[tier] % owners[tier - 1] for tier in middle]
        keys += [places[tier] for tier in range(tree.depth, 0, -1)]
        self.ranks = np.lexsort(keys[::-1]).astype(np.int64)
        self.position = np.empty_like(self.ranks)
        self.position[self.ranks] = np.arange(tree.size)
        self.edges = []
        for gateways in tree.gateways:
            sizes = np.bincount(gateways)
            self.edges.append(np.concatenate([[0], np.cumsum(sizes)]))
        self.pieces = []
        at = 0
        for rank, repeat, stride in runs(self.ranks.tolist(), 1):
            self.pieces.append((at, rank, repeat, stride))
            at += repeat
        self._spans: dict[int, tuple[Ints, Ints]] = {}

    @property
    def is_rank_order(self) -> bool:
        """Whether no block needs to be packed."""
        return len(self.pieces) == 1 and self.pieces[0][3] == 1

    def span(self, tier: int, group: int, gateway: int) -> tuple[int, int]:
        """Positions of the ranks of a group of ``tier`` that have this gateway in it."""
        if tier not in self._spans:
            gateways = self.tree.gateways[tier]
            ports = self.tree.ports[tier].shape[1]
            keys = (self.tree.rows[tier] * ports + gateways)[self.ranks]
            sizes = np.bincount(keys, minlength=(int(self.tree.rows[tier].max()) + 1) * ports)
            first = np.zeros_like(sizes)
            first[keys[::-1]] = np.arange(self.tree.size)[::-1]
            self._spans[tier] = first, first + sizes
        low, high = self._spans[tier]
        key = group * self.tree.ports[tier].shape[1] + gateway
        return int(low[key]), int(high[key])


@lru_cache(maxsize=32)
def order_of(topology: Topology) -> Order:
    """Return the packed order of a topology, computed once for equal topologies."""
    return Order(hierarchy(topology))


class Packing:
    """Where the blocks of a problem lie, in packed order and in rank order.

    Parameters
    ----------
    problem : Problem
        Of one block a rank: equal ones, or of given counts.

    Attributes
    ----------
    order : Order
        The order.
    total : int
        Items of all blocks.
    """

    def __init__(self, problem: Problem) -> None:
        self.order = order_of(problem.topology)
        self.count, counts = problem.count, problem.counts
        if counts is not None and len(counts) and (counts == counts[0]).all():
            self.count, counts = int(counts[0]), None
        self._packed: list[int] | None = None
        if counts is None:
            self.total = self.count * problem.size
            return
        self._packed = _starts(counts[self.order.ranks])
        self._ranked = _starts(counts)
        self.total = self._packed[-1]

    def edge(self, position: int) -> int:
        """First item at a packed position."""
        return position * self.count if self._packed is None else self._packed[position]

    def block(self, buffer: int, low: int, high: int, base: int = 0) -> Block:
        """Positions ``low`` to ``high - 1`` in a buffer that starts with item ``base``."""
        start = self.edge(low)
        return Block(buffer, start - base, self.edge(high) - start)

    def chunks(self, buffer: int, tier: int, gateway: int, base: int = 0) -> Chunks:
        """Give the run of port ``gateway`` below that its rail has at ``tier``."""
        owners = self.order.tree.tiers[tier - 1].owners
        edges = self.order.edges[tier][gateway * owners : (gateway + 1) * owners + 1].tolist()
        if self._packed is None:
            items = [edge * self.count - base for edge in edges]
        else:
            items = [self._packed[edge] - base for edge in edges]
        largest = max(high - low for low, high in pairwise(items))
        return Chunks(buffer, items.__getitem__, largest)

    def pack(self, out: Schedule, ranked: int, packed: int, after: After = ()) -> After:
        """Copy all blocks from rank order to packed order."""
        return tuple(out.copy(user, own, after) for user, own in self._pieces(ranked, packed))

    def unpack(self, out: Schedule, packed: int, ranked: int, after: After = ()) -> After:
        """Copy all blocks from packed order to rank order."""
        return tuple(out.copy(own, user, after) for user, own in self._pieces(ranked, packed))

    def _pieces(self, ranked: int, packed: int) -> list[tuple[Block, Block]]:
        """Pairs of blocks in rank order and in packed order."""
        count, found = self.count, []
        for at, rank, repeat, stride in self.order.pieces:
            if self._packed is None:
                own = Block(packed, at * count, repeat * count)
                user = Block(ranked, rank * count, count, repeat, stride * count)
                if repeat == 1 or stride == 1:
                    user = Block(ranked, rank * count, repeat * count)
                found.append((user, own))
                continue
            width = repeat if stride == 1 else 1
            for i in range(0, repeat, width):
                first, last = rank + i * stride, rank + i * stride + width
                start, end = self._ranked[first], self._ranked[last]
                own = Block(packed, self._packed[at + i], end - start)
                found.append((Block(ranked, start, end - start), own))
        return found


def _starts(counts: Ints) -> list[int]:
    starts: list[int] = np.concatenate([[0], np.cumsum(counts)]).tolist()
    return starts
