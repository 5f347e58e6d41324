"""Gather over rails: all network cards of the root's node take their part.

Ranks hand their blocks to the gateway in their node; every rail gathers down a
binomial tree to its port in the root's node; the ports bring it to the root.
Ranks of the root's node talk to the root directly.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import accumulate

from closeranks.collectives.builders.patterns.binomial_tree import binomial_gather, children
from closeranks.collectives.builders.patterns.node_classes import gather_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, folds, nodes_of, pieces
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import bring


class Branch:
    """A rail as a tree whose root is the port in the root's node.

    Parameters
    ----------
    nodes : Nodes
        Of the topology.
    home : int
        Node of the root of the operation.
    rail : int
        Which rail.
    count : int
        Items of a rank's block.

    Attributes
    ----------
    members : list of int
        Ports, that of ``home`` first.
    ranks : list of list of int
        Per member the ranks it serves; none in ``home``.
    """

    def __init__(self, nodes: Nodes, home: int, rail: int, count: int) -> None:
        self.turned = [*range(home, len(nodes)), *range(home)]
        self.members = [nodes.members[node][rail] for node in self.turned]
        self.ranks = [[], *(nodes.served(node, rail) for node in self.turned[1:])]
        self.count = count
        self._edges = [0, *accumulate(len(ranks) * count for ranks in self.ranks)]

    @property
    def order(self) -> list[int]:
        """All ranks served, in the order in which their blocks lie."""
        return [rank for ranks in self.ranks for rank in ranks]

    def block(self, buffer: int, low: int, high: int, base: int) -> Block:
        """Blocks of members ``low`` to ``high - 1`` in a buffer from ``base`` on."""
        start = self._edges[low]
        return Block(buffer, start - self._edges[base], self._edges[high] - start)

    def room(self, out: Script, me: int) -> int:
        """Scratch for the subtree of a member."""
        ends = [end for _, end in children(me, len(self.members))]
        return out.scratch(self._edges[ends[-1] if ends else me + 1] - self._edges[me])


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a gather of equal blocks.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``gather``.
    """
    nodes, root, count = nodes_of(problem.topology), problem.root, problem.count
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(INPUT, 0, count)
    if node == home and out.rank != root:
        out.send(root, own)
    if me >= nodes.rails:
        if node != home:
            out.send(nodes.members[node][me % nodes.rails], own)
    else:
        branch = Branch(nodes, home, me, count)
        place = branch.turned.index(node)
        buffer = branch.room(out, place)
        have = _collect(out, branch, place, buffer)
        gathered = yield from binomial_gather(
            out,
            branch.members,
            place,
            lambda low, high: (branch.block(buffer, low, high, place),),
            have,
            1,
        )
        if node == home:
            _bring_home(out, branch, buffer, root, gathered.done)
    if out.rank == root:
        _take(out, nodes, home, count)


def _collect(out: Script, branch: Branch, place: int, buffer: int) -> After:
    """Take the blocks of the ranks behind this port, its own first."""
    have: After = ()
    for at, rank in enumerate(branch.ranks[place]):
        block = Block(buffer, at * branch.count, branch.count)
        if rank == out.rank:
            have += bring(out, Block(INPUT, 0, branch.count), block)
        else:
            have += (out.receive(rank, block),)
    return have


def _bring_home(out: Script, branch: Branch, buffer: int, root: int, ready: After) -> None:
    if out.rank != root:
        out.send(root, branch.block(buffer, 0, len(branch.members), 0), 2, ready)
        return
    for at, block in pieces(folds(branch.order), OUTPUT, branch.count):
        out.copy(Block(buffer, at * branch.count, block.items), block, ready)


def _take(out: Script, nodes: Nodes, home: int, count: int) -> None:
    """On the root: take from the ranks of its node, and from its ports."""
    out.copy(Block(INPUT, 0, count), Block(OUTPUT, out.rank * count, count))
    mates = nodes.members[home]
    for mate in mates:
        if mate != out.rank:
            out.receive(mate, Block(OUTPUT, mate * count, count))
    for rail in range(nodes.rails):
        if mates[rail] == out.rank:
            continue
        order = Branch(nodes, home, rail, count).order
        found = pieces(folds(order), OUTPUT, count)
        if len(found) == 1:
            out.receive(mates[rail], found[0][1], 2)
            continue
        buffer = out.scratch(len(order) * count)
        came = out.receive(mates[rail], Block(buffer, 0, len(order) * count), 2)
        for at, block in found:
            out.copy(Block(buffer, at * count, block.items), block, (came,))


ALGORITHMS = (Algorithm("hierarchical", build, refuses=flat, classes=gather_classes),)
