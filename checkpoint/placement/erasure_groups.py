"""Erasure groups: nodes that protect each other, chosen from the topology.

A group is a ring of *members*, with their data coded together; it rebuilds as
many of them as it has parities.  Members belong to different nodes.  Nodes of
one switch or site belong to different groups, as far as there are groups:
nodes are dealt to groups in the order of the hierarchy, one to each in turn.
For instance, 8 nodes on 2 switches, groups of 4::

    switch A                        switch B
    +------+------+------+------+   +------+------+------+------+
    | n0   | n1   | n2   | n3   |   | n4   | n5   | n6   | n7   |
    | g0   | g1   | g0   | g1   |   | g0   | g1   | g0   | g1   |
    +------+------+------+------+   +------+------+------+------+

    group 0: n0 -> n2 -> n4 -> n6 -> n0        group 1: n1, n3, n5, n7

So no group has more than its share of any part of the machine, at any level:
with two parities either switch may be lost.  The order inside a group is that
of the hierarchy, so that neighbours are near.  If there are fewer nodes than
members, a node has several.

The data of a node are cut into equal pieces, *lanes* times its members,
however they are spread over its ranks.  Each lane is coded for itself, by a
rank of its own.

Everything here is local and pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.numeric_argument import whole
from closeranks.comms.topology.topology import Topology
from closeranks.comms.topology.topology_json import ranges
from closeranks.errors import UsageError

#: Members of a group that nobody has asked for: more save little memory, and make every
#: loss dearer to mend.
USUAL: Final = 8
#: Members of a group at most: blocks of a code.
MOST: Final = 255
#: Groups that are printed.
_PRINTED: Final = 16


@dataclass(frozen=True, repr=False)
class Protection:
    """Erasure groups.

    Parameters
    ----------
    topology : Topology
        Of the job.
    parity : int
        Members that each group can lose.
    rings : tuple of tuple of int
        For each group the nodes of its members, in the order of the ring.
    """

    topology: Topology
    parity: int
    rings: tuple[tuple[int, ...], ...]

    @cached_property
    def group_of(self) -> dict[int, int]:
        """Node -> its group."""
        return {node: group for group, ring in enumerate(self.rings) for node in ring}

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """For each group into how many lanes the data of a member are cut.

        As many as let every rank of its fullest node code one.
        """
        ranks = np.bincount(nodes_of(self.topology))
        busiest = (
            max(-(-int(ranks[node]) // members) for node, members in Counter(ring).items())
            for ring in self.rings
        )
        return tuple(busiest)

    @property
    def keeps_nodes(self) -> bool:
        """Whether it survives the loss of any node, or only of pieces of a node's data."""
        return self.most_together("node") <= self.parity

    def most_together(self, level: str) -> int:
        """Count the members that one group has at most in one group of a level.

        Parameters
        ----------
        level : str
            A level of the topology, or "node".

        Returns
        -------
        int
            Up to `parity`, and any one such part of the machine may be lost.
        """
        part = _parts(self.topology, level)
        return max(max(Counter(part[node] for node in ring).values()) for ring in self.rings)

    def memory(self, group: int) -> float:
        """Give how many times its data a group keeps: members over those without parity."""
        members = len(self.rings[group])
        return members / (members - self.parity)

    def survival(self, lost: int) -> float:
        """Give the probability that everything is left after nodes were lost.

        Parameters
        ----------
        lost : int
            Nodes, any of them alike, at the same time.

        Returns
        -------
        float
            Exact but for rounding; 0 where there are not as many nodes.
        """
        nodes = len(self.group_of)
        if lost > nodes:
            return 0.0
        ways = [1] + [0] * lost  # of losing so many nodes of the groups so far, and no data
        for ring in self.rings:
            own = self._ways(ring, lost)
            ways = [sum(ways[i] * own[n - i] for i in range(n + 1)) for n in range(lost + 1)]
        return ways[lost] / comb(nodes, lost)

    def _ways(self, ring: tuple[int, ...], lost: int) -> list[int]:
        """Count the ways to lose 0, 1, 2 ... nodes of a group, and no data."""
        ways = Counter({(0, 0): 1})  # (nodes, members) lost
        for members in Counter(ring).values():
            for (nodes, gone), number in list(ways.items()):
                if nodes < lost and gone + members <= self.parity:
                    ways[nodes + 1, gone + members] += number
        return [sum(n for (nodes, _), n in ways.items() if nodes == k) for k in range(lost + 1)]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        """Write it for a reader."""
        members = " or ".join(map(str, sorted({len(ring) for ring in self.rings})))
        memory = max(self.memory(group) for group in range(len(self.rings)))
        number = "1 erasure group" if len(self.rings) == 1 else f"{len(self.rings)} erasure groups"
        losses = f"{self.parity} of which may be lost; {memory:.2f} times the data in memory"
        lines = [f"{number} of {members} members, {losses}"]
        for group, ring in enumerate(self.rings[:_PRINTED]):
            lines.append(f"  group {group}: nodes {_told(ring)}")
        if len(self.rings) > _PRINTED:
            lines.append(f"  ... ({len(self.rings) - _PRINTED} groups left out)")
        return [*lines, *self._promises()]

    def _promises(self) -> list[str]:
        """Write how much may be lost."""
        nodes = len(self.group_of)
        if not self.keeps_nodes:
            here = "one node has them all" if nodes == 1 else f"{nodes} nodes are too few"
            return [f"no node may be lost: {here}; lost or damaged files of a node come back"]
        levels = [*self.topology.levels[: _depth(self.topology)], "node"]
        fine = [name for name in levels if _count(self.topology, name) > 1]
        kept = [name for name in fine if self.most_together(name) <= self.parity]
        lines = [f"survives the loss of any one {', '.join(kept)}"]
        bare = [name for name in fine if name not in kept]
        if bare:
            lines.append(f"but not of every {', '.join(bare)}, which has more members of a group")
        chances = [f"{n}: {100 * self.survival(n):.4g} %" for n in range(1, min(3, nodes) + 1)]
        return [*lines, f"nodes lost at random, and nothing lost: {', '.join(chances)}"]


def protect(topology: Topology, parity: int = 1, group: int | None = None) -> Protection:
    """Form erasure groups.

    Parameters
    ----------
    topology : Topology
        Of the job.
    parity : int
        Members that each group can lose, at least 1.
    group : int, optional
        Members of a group, more than ``parity``; where nodes are left over, groups
        are larger.  Eight, or as many as there are nodes, if not given.

    Returns
    -------
    Protection
        The same on every rank for the same arguments.

    Raises
    ------
    UsageError
        If there is no such group.
    """
    nodes = _count(topology, "node")
    parity = whole("checkpoint", "parity", parity, 1)
    group = None if group is None else whole("checkpoint", "group", group, 1)
    members = _usual(topology, nodes, parity) if group is None else group
    if not parity < members <= MOST:
        problem = f"a group of {members} of which {parity} may be lost"
        raise UsageError("checkpoint", problem, f"give parity < group <= {MOST}")
    order = _in_order(topology)
    if nodes < members:  # a ring in which nodes are several times, as evenly as can be
        ring = tuple(order[at * nodes // members] for at in range(members))
        return Protection(topology, parity, (ring,))
    groups = max(nodes // members, -(-nodes // MOST))
    return Protection(topology, parity, tuple(tuple(order[at::groups]) for at in range(groups)))


def _told(ring: tuple[int, ...]) -> str:
    """Write the nodes of a group, in the order of its ring."""
    members = Counter(ring)
    if list(ring) == sorted(members):
        return ranges(ring)
    return ", ".join(f"{node} ({number})" if number > 1 else f"{node}"
                     for node, number in members.items())  # fmt: skip


def _usual(topology: Topology, nodes: int, parity: int) -> int:
    """Choose how many members a group has."""
    if nodes > parity:
        return max(min(nodes, USUAL), parity + 1)
    if nodes > 1:
        return nodes * parity  # so that a node has as many as may be lost
    return max(min(topology.size, USUAL), parity + 1)


def _depth(topology: Topology) -> int:
    """Give how many levels are outside of nodes."""
    return topology.position("node") if "node" in topology.levels else 0


def nodes_of(topology: Topology) -> NDArray[np.int32]:
    """Give the node of each rank; without such a level all are on one node.

    Local.

    Parameters
    ----------
    topology : Topology
        Of the job.

    Returns
    -------
    ndarray of int32, shape (size,)
        Numbers of nodes.
    """
    if "node" not in topology.levels:
        return np.zeros(topology.size, np.int32)
    nodes: NDArray[np.int32] = topology.groups[topology.position("node")]
    return nodes


def _count(topology: Topology, level: str) -> int:
    """Give how many groups a level has."""
    return topology.count(level) if level in topology.levels else 1


def _parts(topology: Topology, level: str) -> dict[int, int]:
    """Give the group of a level in which each node is."""
    row = topology.groups[topology.position(level)] if level in topology.levels else None
    nodes = nodes_of(topology)
    _, first = np.unique(nodes, return_index=True)
    return {int(nodes[rank]): 0 if row is None else int(row[rank]) for rank in first}


def _in_order(topology: Topology) -> list[int]:
    """Give the nodes in the order of the hierarchy: parts of it are in one run."""
    nodes = nodes_of(topology)
    _, first = np.unique(nodes, return_index=True)
    path = topology.groups[: _depth(topology)][:, first]
    order = np.lexsort((nodes[first], *path[::-1]))
    return [int(node) for node in nodes[first][order]]
