"""Scatter over rails: the mirror of the hierarchical gather.

The root gives each port of its node what its rail carries; every rail scatters
down a binomial tree; gateways hand over inside their nodes.
"""

from __future__ import annotations

from collections.abc import Generator

from closeranks.collectives.builders.hierarchical.gather import Branch
from closeranks.collectives.builders.patterns.binomial_tree import binomial_scatter
from closeranks.collectives.builders.patterns.node_classes import scatter_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, folds, nodes_of, pieces
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import After, Script


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a scatter of equal blocks.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``scatter``.
    """
    nodes, root, count = nodes_of(problem.topology), problem.root, problem.count
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(OUTPUT, 0, count)
    kept = -1
    ready: After = ()
    if out.rank == root:
        kept, ready = _give(out, nodes, home, count)
        yield
    elif node == home:
        out.receive(root, own)
    if me >= nodes.rails:
        if node != home:
            out.receive(nodes.members[node][me % nodes.rails], own)
        return
    branch = Branch(nodes, home, me, count)
    place = branch.turned.index(node)
    buffer = branch.room(out, place) if kept < 0 else kept
    if node == home and out.rank != root:
        everything = branch.block(buffer, 0, len(branch.members), 0)
        ready = (out.receive(root, everything, 2),)
    spread = yield from binomial_scatter(
        out,
        branch.members,
        place,
        lambda low, high: (branch.block(buffer, low, high, place),),
        ready,
        1,
    )
    for at, rank in enumerate(branch.ranks[place]):
        block = Block(buffer, at * count, count)
        if rank == out.rank:
            out.copy(block, own, spread.done)
        else:
            out.send(rank, block, 0, spread.done)


def _give(out: Script, nodes: Nodes, home: int, count: int) -> tuple[int, After]:
    """On the root: give to its node's ranks and ports; pack for the own rail."""
    out.copy(Block(INPUT, out.rank * count, count), Block(OUTPUT, 0, count))
    mates = nodes.members[home]
    kept = -1
    packed: After = ()
    for rail in range(nodes.rails):
        order = Branch(nodes, home, rail, count).order
        found = pieces(folds(order), INPUT, count)
        if mates[rail] != out.rank and len(found) == 1:
            out.send(mates[rail], found[0][1], 2)
            continue
        buffer = out.scratch(len(order) * count)
        copied = tuple(
            out.copy(block, Block(buffer, at * count, block.items)) for at, block in found
        )
        if mates[rail] == out.rank:
            kept, packed = buffer, copied
        else:
            out.send(mates[rail], Block(buffer, 0, len(order) * count), 2, copied)
    for mate in mates:
        if mate != out.rank:
            out.send(mate, Block(INPUT, mate * count, count))
    return kept, packed


ALGORITHMS = (Algorithm("hierarchical", build, refuses=flat, classes=scatter_classes),)
