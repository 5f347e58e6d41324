"""Gather blocks of any sizes over rails.

Only the root knows the counts.  It tells the ports of its node those of their
rails; elsewhere a gateway takes what comes.  Every block travels on its own,
so hops overlap, and lands in its place on the root.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.node_classes import linear_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, nodes_of
from closeranks.collectives.plans import regroup  # noqa: F401 - registers kernels
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Window

#: Stands for a count that a rank cannot know.
UNKNOWN = 1 << 62
#: Blocks of one rail in flight.
WIDTH = 32
#: First slot of forwarded blocks between a port of the root's node and the root.
FORWARDED = 2


class Layout:
    """Registers for the blocks of one rail, which `layout` sets from their counts.

    Parameters
    ----------
    out : Script
        The pen.
    ranks : list of int
        Whose blocks.
    problem : Problem
        Gives the bounds, as far as they are known.
    root : int
        Who sends the counts.

    Attributes
    ----------
    buffer : int
        Scratch for all blocks.
    ready : tuple of int
        What sets the registers.
    """

    def __init__(self, out: Script, ranks: list[int], problem: Problem, root: int) -> None:
        assert problem.counts is not None
        known = problem.counts[ranks]
        whole = bool((known >= 0).all())
        bounds = known.tolist() if whole else [UNKNOWN] * len(ranks)
        starts = (np.cumsum(known) - known).tolist() if whole else bounds
        total = out.register(int(known.sum()) if whole else UNKNOWN)
        self._counts = [out.register(bound) for bound in bounds]
        self._starts = [out.register(bound) for bound in starts]
        self.buffer = out.scratch(total)
        table = Block(out.scratch(len(ranks), 8), 0, len(ranks))
        told = out.receive(root, table)
        sets = (total, *self._counts, *self._starts)
        self.ready: After = (out.apply("layout", (table,), (), sets, (told,)),)

    def block(self, index: int) -> Block:
        """Return the place of a block."""
        return Block(self.buffer, self._starts[index], self._counts[index])


def beyond(nodes: Nodes, home: int, rail: int) -> list[tuple[int, int, int]]:
    """Ranks a rail serves outside a node: ``rank, port, place behind the port``."""
    return [
        (rank, nodes.members[node][rail], place)
        for node in range(len(nodes))
        if node != home
        for place, rank in enumerate(nodes.served(node, rail))
    ]


def by_rank(buffer: int, counts: NDArray[np.int64]) -> list[Block]:
    """Blocks of the root's buffer, in rank order."""
    starts = (np.cumsum(counts) - counts).tolist()
    return [Block(buffer, s, c) for s, c in zip(starts, counts.tolist(), strict=True)]


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a gather of blocks of any sizes.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``gatherv``.
    """
    nodes, root = nodes_of(problem.topology), problem.root
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(INPUT, 0, out.buffers[INPUT].items)
    if out.rank == root:
        yield from _take(out, problem, nodes, home)
    elif node == home:
        out.send(root, own)
        if me < nodes.rails:
            yield from _forward(out, problem, nodes, home, me)
    elif me >= nodes.rails:
        out.send(nodes.members[node][me % nodes.rails], own, empty=True)
    else:
        _hand_on(out, problem, nodes, home, me)


def _hand_on(out: Script, problem: Problem, nodes: Nodes, home: int, me: int) -> None:
    """On a gateway elsewhere: send the own block and those of the ranks behind it."""
    assert problem.counts is not None
    port = nodes.members[home][me]
    for place, rank in enumerate(nodes.served(int(nodes.node[out.rank]), me)):
        if rank == out.rank:
            out.send(port, Block(INPUT, 0, out.buffers[INPUT].items), place, empty=True)
            continue
        known = int(problem.counts[rank])
        count = out.register(known if known >= 0 else UNKNOWN)
        block = Block(out.scratch(count), 0, count)
        out.send(port, block, place, (out.receive(rank, block),))


def _forward(
    out: Script, problem: Problem, nodes: Nodes, home: int, me: int
) -> Generator[None, None, None]:
    """On a port of the root's node: pass on what comes along the rail."""
    served = beyond(nodes, home, me)
    layout = Layout(out, [rank for rank, _, _ in served], problem, problem.root)
    coming = Window(WIDTH, layout.ready)
    for index, (_, port, place) in enumerate(served):
        block = layout.block(index)
        came = out.receive(port, block, place, coming.gate())
        coming.admit(came)
        out.send(problem.root, block, FORWARDED + index, (came,))
        yield


def _take(out: Script, problem: Problem, nodes: Nodes, home: int) -> Generator[None, None, None]:
    """On the root: tell the ports the counts, take every block in its place."""
    assert problem.counts is not None
    blocks = by_rank(OUTPUT, problem.counts)
    out.copy(Block(INPUT, 0, blocks[out.rank].count), blocks[out.rank])
    mates = nodes.members[home]
    for rail in range(nodes.rails):
        served = beyond(nodes, home, rail)
        if mates[rail] != out.rank:
            table = out.constant(problem.counts[[rank for rank, _, _ in served]])
            out.send(mates[rail], Block(table, 0, len(served)))
        coming = Window(WIDTH)
        for index, (rank, port, place) in enumerate(served):
            at_port = mates[rail] == out.rank
            peer, slot = (port, place) if at_port else (mates[rail], FORWARDED + index)
            coming.admit(out.receive(peer, blocks[rank], slot, coming.gate(), empty=True))
            yield
    for mate in mates:
        if mate != out.rank:
            out.receive(mate, blocks[mate])


ALGORITHMS = (
    Algorithm("hierarchical", build, refuses=flat, classes=linear_classes, symbolic=True),
)
