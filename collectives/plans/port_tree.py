"""The tree of ports: which ranks carry data out of a group, in which order.

A rank is its own port.  A group of an outer level has ``K`` ports per port of
its children, where ``K`` is the least number of children any group of that
level has: port ``(k, j)`` is port ``k`` of child ``j``.  Ports of equal index
in the children of one group form a *rail*; rails of one tier work at the same
time and share nothing.  Every rank has a gateway among the ports of its own
group, so uneven groups and any rank-to-node map need no other rule.  See
docs/hierarchy.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.collective import Problem
from closeranks.comms.topology.topology import Topology

Ints = NDArray[np.int64]


class Rail(NamedTuple):
    """The ranks of one stage: one port of each child of a group.

    Attributes
    ----------
    tier : int
        1 joins ranks into the innermost groups, the last joins the outermost.
    level : str
        The level that every message of the stage crosses.
    members : list of int
        One rank a child, in the order of the children.
    me : int
        Place of this rank in ``members``.
    owners : int
        The first so many members are ports of the group; at the last tier all.
    """

    tier: int
    level: str
    members: list[int]
    me: int
    owners: int


class Tier(NamedTuple):
    """How the groups of one tier are made of those of the tier below.

    Attributes
    ----------
    level : str
        The level that separates two children of a group.
    parent : ndarray of int64, shape (children,)
        Group of each child.
    place : ndarray of int64, shape (children,)
        Number of each child inside its group.
    order, starts : ndarray of int64
        Children sorted by group, and where each group starts.
    owners : int
        Least number of children of a group.
    """

    level: str
    parent: Ints
    place: Ints
    order: Ints
    starts: Ints
    owners: int

    def children(self, group: int) -> Ints:
        """Children of a group, in order."""
        return self.order[self.starts[group] : self.starts[group + 1]]


class Hierarchy:
    """Ports and rails of a topology; computed once, see `hierarchy`.

    Parameters
    ----------
    topology : Topology
        Any number of levels; a level that equals a neighbour is passed over.

    Attributes
    ----------
    rows : list of ndarray of int64, shape (size,)
        Group of each rank: the ranks themselves, then one row a tier, the last all
        0.
    tiers : list of Tier
        ``tiers[t - 1]`` is tier ``t``.
    ports : list of ndarray of int64, shape (groups, ports)
        Ports of the groups of ``rows``; of the whole machine none are needed.
    gateways : list of ndarray of int64, shape (size,)
        For each rank the port of its own group that deals with its data.
    is_port : list of ndarray of bool, shape (size,)
        Whether a rank is its own gateway, so one of the ports.
    in_node : list of bool
        By tier, 0 being the ranks: whether every group is part of one node.
    """

    def __init__(self, topology: Topology) -> None:
        names, self.rows = _partitions(topology)
        size = topology.size
        self.size = size
        self.tiers: list[Tier] = []
        self.ports: list[Ints] = [np.arange(size, dtype=np.int64)[:, None]]
        self.gateways: list[Ints] = [np.zeros(size, dtype=np.int64)]
        self.is_port = [np.ones(size, dtype=bool)]
        for name, inner, outer in zip(names, self.rows, self.rows[1:], strict=False):
            tier = _tier(name, inner, outer)
            self.tiers.append(tier)
            place = tier.place[inner]
            first = tier.starts[:-1, None] + np.arange(tier.owners)
            ports = self.ports[-1][tier.order[first]]  # (groups, owners, ports below)
            self.ports.append(ports.transpose(0, 2, 1).reshape(len(ports), -1))
            self.gateways.append(self.gateways[-1] * tier.owners + place % tier.owners)
            self.is_port.append(self.is_port[-1] & (place < tier.owners))
        self.in_node = [_lies_in_node(topology, row) for row in self.rows]

    @property
    def widest(self) -> int:
        """Most members of a rail."""
        return max(int(np.diff(tier.starts).max()) for tier in self.tiers)

    @property
    def is_rank_order(self) -> bool:
        """Whether the groups of every tier are runs of ranks."""
        return all(bool((np.diff(row) >= 0).all()) for row in self.rows)

    @property
    def depth(self) -> int:
        """Number of tiers; below 2 there is no hierarchy."""
        return len(self.tiers)

    def rail(self, tier: int, rank: int) -> Rail:
        """Rail of ``rank`` at ``tier``; it must be a port one tier below."""
        joined = self.tiers[tier - 1]
        group = int(self.rows[tier][rank])
        column = self.gateways[tier - 1][rank]
        members = self.ports[tier - 1][joined.children(group), column].tolist()
        me = int(joined.place[self.rows[tier - 1][rank]])
        owners = len(members) if tier == self.depth else joined.owners
        return Rail(tier, joined.level, members, me, owners)

    def rails(self, rank: int) -> list[Rail]:
        """Rails of ``rank``, innermost first, as far up as it is a port."""
        found = []
        for tier in range(1, self.depth + 1):
            if not self.is_port[tier - 1][rank]:
                break
            found.append(self.rail(tier, rank))
        return found

    def place(self, tier: int, rank: int) -> int:
        """Place of ``rank``'s child group inside its group of ``tier``."""
        return int(self.tiers[tier - 1].place[self.rows[tier - 1][rank]])

    def places(self, tier: int) -> Ints:
        """`place` of every rank."""
        return self.tiers[tier - 1].place[self.rows[tier - 1]]


@lru_cache(maxsize=32)
def hierarchy(topology: Topology) -> Hierarchy:
    """Return the ports of a topology, computed once for equal topologies."""
    return Hierarchy(topology)


def flat(problem: Problem) -> str | None:
    """Refuse topologies in which all ranks are equally far from each other."""
    if hierarchy(problem.topology).depth < 2:
        return "the topology has a single level, so there is no hierarchy to use"
    return None


def flat_or_disordered(problem: Problem) -> str | None:
    """Refuse as `flat` does, and sums that would have to leave rank order."""
    if not problem.commutative and not hierarchy(problem.topology).is_rank_order:
        return "the reduction does not commute and the ranks of a group are not consecutive"
    return flat(problem)


def _partitions(topology: Topology) -> tuple[list[str], list[Ints]]:
    """Different partitions, innermost first, each with its outermost name."""
    names: list[str] = []
    rows: list[Ints] = []
    for name, row in zip(topology.levels[::-1], topology.groups[::-1], strict=True):
        if rows and row.max() == rows[-1].max():
            names[-1] = name
            continue
        names.append(name)
        rows.append(row.astype(np.int64))
    if rows[-1].max() > 0:
        rows.append(np.zeros(topology.size, dtype=np.int64))
    return names, rows


def _tier(level: str, inner: Ints, outer: Ints) -> Tier:
    _, first = np.unique(inner, return_index=True)
    parent = outer[first]
    order = np.argsort(parent, kind="stable").astype(np.int64)
    numbers = np.bincount(parent)
    starts = np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - starts[parent[order]]
    return Tier(level, parent, place, order, starts, int(numbers.min()))


def _lies_in_node(topology: Topology, row: Ints) -> bool:
    """Whether no group of a partition reaches beyond a node."""
    if "node" not in topology.levels:
        return False
    node = topology.groups[topology.levels.index("node")]
    _, first = np.unique(row, return_index=True)
    return bool((node == node[first[row]]).all())
