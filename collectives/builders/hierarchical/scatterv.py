"""Scatter blocks of any sizes over rails: the mirror of the hierarchical gatherv."""

from __future__ import annotations

from collections.abc import Generator

from closeranks.collectives.builders.hierarchical.gatherv import (
    FORWARDED,
    UNKNOWN,
    WIDTH,
    Layout,
    beyond,
    by_rank,
)
from closeranks.collectives.builders.patterns.node_classes import linear_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, nodes_of
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Window


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a scatter of blocks of any sizes.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``scatterv``.
    """
    nodes, root = nodes_of(problem.topology), problem.root
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(OUTPUT, 0, out.buffers[OUTPUT].items)
    if out.rank == root:
        yield from _give(out, problem, nodes, home)
    elif node == home:
        out.receive(root, own, 1)
        if me < nodes.rails:
            yield from _forward(out, problem, nodes, home, me)
    elif me >= nodes.rails:
        out.receive(nodes.members[node][me % nodes.rails], own, empty=True)
    else:
        _hand_over(out, problem, nodes, home, me)


def _hand_over(out: Script, problem: Problem, nodes: Nodes, home: int, me: int) -> None:
    """On a gateway elsewhere: take the own block, hand over those behind it."""
    assert problem.counts is not None
    port = nodes.members[home][me]
    for place, rank in enumerate(nodes.served(int(nodes.node[out.rank]), me)):
        if rank == out.rank:
            out.receive(port, Block(OUTPUT, 0, out.buffers[OUTPUT].items), place, empty=True)
            continue
        known = int(problem.counts[rank])
        count = out.register(known if known >= 0 else UNKNOWN)
        block = Block(out.scratch(count), 0, count)
        out.send(rank, block, 0, (out.receive(port, block, place),))


def _forward(
    out: Script, problem: Problem, nodes: Nodes, home: int, me: int
) -> Generator[None, None, None]:
    """On a port of the root's node: pass on what comes from the root."""
    served = beyond(nodes, home, me)
    layout = Layout(out, [rank for rank, _, _ in served], problem, problem.root)
    coming = Window(WIDTH, layout.ready)
    for index, (_, port, place) in enumerate(served):
        block = layout.block(index)
        came = out.receive(problem.root, block, FORWARDED + index, coming.gate())
        coming.admit(came)
        out.send(port, block, place, (came,))
        yield


def _give(out: Script, problem: Problem, nodes: Nodes, home: int) -> Generator[None, None, None]:
    """On the root: tell the ports the counts, send every block on its way."""
    assert problem.counts is not None
    blocks = by_rank(INPUT, problem.counts)
    out.copy(blocks[out.rank], Block(OUTPUT, 0, blocks[out.rank].count))
    mates = nodes.members[home]
    for mate in mates:
        if mate != out.rank:
            out.send(mate, blocks[mate], 1)
    rails = [beyond(nodes, home, rail) for rail in range(nodes.rails)]
    for rail, served in enumerate(rails):
        if mates[rail] != out.rank:
            table = out.constant(problem.counts[[rank for rank, _, _ in served]])
            out.send(mates[rail], Block(table, 0, len(served)))
    going = [Window(WIDTH) for _ in rails]
    for index in range(max(map(len, rails))):
        for rail, served in enumerate(rails):
            if index < len(served):
                rank, port, place = served[index]
                at_port = mates[rail] == out.rank
                peer, slot = (port, place) if at_port else (mates[rail], FORWARDED + index)
                after = going[rail].gate()
                going[rail].admit(out.send(peer, blocks[rank], slot, after, empty=True))
        yield


ALGORITHMS = (
    Algorithm("hierarchical", build, refuses=flat, classes=linear_classes, symbolic=True),
)
