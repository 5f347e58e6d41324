"""Gather, of equal blocks and of counts that only the root knows.

Flat, and over rails, where all network cards of the root's node take their
part.  Ranks give their blocks to the gateway in their node.  Every rail
gathers down a binomial tree to its port in the root's node.  The ports bring
the blocks to the root.  Ranks of the root's node send to the root directly.

With blocks of any sizes, only the root knows the counts.  It tells the ports
of its node the counts of their rails; elsewhere a gateway forwards every block
that arrives.  Every block travels on its own, so hops overlap, and lands in
its place on the root.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.over_vector import turned
from closeranks.collectives.builders.patterns.round_classes import binomial_up_rounds, subtrees
from closeranks.collectives.builders.patterns.tier_classes import gather_classes, linear_classes
from closeranks.collectives.builders.patterns.trees import binomial_gather, children, linear_gather
from closeranks.collectives.builders.patterns.two_tiers import NodeTiers, folds, nodes_of, pieces
from closeranks.collectives.plans import apply_kernels  # noqa: F401 - registers kernels
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, BlockOf, Window, Writing, bring, seats
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, classify
from closeranks.collectives.plans.schedule import After, Schedule


def wrapped(buffer: int, size: int, root: int, count: int, low: int, high: int) -> list[Block]:
    """Return where places ``[low, high)``, counted from the root, lie in rank order.

    Parameters
    ----------
    buffer : int
        A buffer of ``size`` blocks by rank.
    size, root : int
        Ranks, and the one that is place 0.
    count : int
        Items of a block.
    low, high : int
        Places.
    """
    first, last = root + low, root + high
    if first >= size or last <= size:
        return [Block(buffer, first % size * count, (high - low) * count)]
    return [
        Block(buffer, first * count, (size - first) * count),
        Block(buffer, 0, (last - size) * count),
    ]


def _binomial(out: Schedule, problem: Problem) -> Writing:
    size, root, count = problem.size, problem.root, problem.count
    members, me = turned(problem, out.rank)
    source = Block(INPUT, 0, count)
    end = max((end for _, end in children(me, size)), default=me + 1)
    if me and end == me + 1:
        return (yield from binomial_gather(out, members, me, lambda *_: (source,), (), 0))
    work = out.scratch((end - me) * count) if me else OUTPUT

    def pieces(low: int, high: int) -> list[Block]:
        if me:
            return [Block(work, (low - me) * count, (high - low) * count)]
        return wrapped(OUTPUT, size, root, count, low, high)

    own = bring(out, source, pieces(me, me + 1)[0])
    return (yield from binomial_gather(out, members, me, pieces, own, 0))


def _binomial_classes(problem: Problem) -> Ints:
    members = np.roll(np.arange(problem.size), -problem.root)
    sizes = subtrees(np.full(problem.size, problem.count))
    leads = np.arange(problem.size) == 0
    rounds = binomial_up_rounds(problem.size, sizes)
    return by_rounds(problem.topology, members, rounds, (leads,))


def _linear(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    root, target = members.index(problem.root), _results(out, problem)
    count = problem.count if problem.counts is None else int(problem.counts[out.rank])
    source = Block(INPUT, 0, count)
    return linear_gather(out, members, me, root, source, lambda j: target(members[j]), (), 0)


def _results(out: Schedule, problem: Problem) -> BlockOf:
    """Results by rank; only the root asks for them."""
    if problem.counts is None or out.rank != problem.root:
        return even(OUTPUT, problem.count)
    return packed(OUTPUT, problem.counts)


def linear_gather_classes(problem: Problem) -> Ints:
    """Classes of ranks that exchange one message with the root."""
    ranks = np.arange(problem.size)
    root = np.full(problem.size, problem.root)
    level = problem.topology.level_indices(ranks, root).astype(np.int64)
    counts = np.zeros_like(ranks) if problem.counts is None else problem.counts
    return classify(problem.size, (level, ranks == problem.root, counts))


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("linear", _linear, classes=linear_gather_classes),
)

ALGORITHMS_V = (Algorithm("linear", _linear, classes=linear_gather_classes),)


class Branch:
    """A rail as a tree with the port in the root's node as its root.

    Parameters
    ----------
    nodes : NodeTiers
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

    def __init__(self, nodes: NodeTiers, home: int, rail: int, count: int) -> None:
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

    def room(self, out: Schedule, me: int) -> int:
        """Scratch for the subtree of a member."""
        ends = [end for _, end in children(me, len(self.members))]
        return out.scratch(self._edges[ends[-1] if ends else me + 1] - self._edges[me])


def hierarchical_gather(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a gather of equal blocks.

    Parameters
    ----------
    out : Schedule
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


def _collect(out: Schedule, branch: Branch, place: int, buffer: int) -> After:
    """Take the blocks of the ranks behind this port, its own first."""
    have: After = ()
    for at, rank in enumerate(branch.ranks[place]):
        block = Block(buffer, at * branch.count, branch.count)
        if rank == out.rank:
            have += bring(out, Block(INPUT, 0, branch.count), block)
        else:
            have += (out.receive(rank, block),)
    return have


def _bring_home(out: Schedule, branch: Branch, buffer: int, root: int, ready: After) -> None:
    if out.rank != root:
        out.send(root, branch.block(buffer, 0, len(branch.members), 0), 2, ready)
        return
    for at, block in pieces(folds(branch.order), OUTPUT, branch.count):
        out.copy(Block(buffer, at * branch.count, block.items), block, ready)


def _take(out: Schedule, nodes: NodeTiers, home: int, count: int) -> None:
    """On the root: take from the ranks of its node, and from its ports."""
    out.copy(Block(INPUT, 0, count), Block(OUTPUT, out.rank * count, count))
    peers = nodes.members[home]
    for peer in peers:
        if peer != out.rank:
            out.receive(peer, Block(OUTPUT, peer * count, count))
    for rail in range(nodes.rails):
        if peers[rail] == out.rank:
            continue
        order = Branch(nodes, home, rail, count).order
        found = pieces(folds(order), OUTPUT, count)
        if len(found) == 1:
            out.receive(peers[rail], found[0][1], 2)
            continue
        buffer = out.scratch(len(order) * count)
        came = out.receive(peers[rail], Block(buffer, 0, len(order) * count), 2)
        for at, block in found:
            out.copy(Block(buffer, at * count, block.items), block, (came,))


HIERARCHICAL = (
    Algorithm("hierarchical", hierarchical_gather, refuses=flat, classes=gather_classes),
)


#: Stands for a count that a rank cannot know.
UNKNOWN = 1 << 62
#: Blocks of one rail in flight.
WIDTH = 32
#: First slot of forwarded blocks between a port of the root's node and the root.
FORWARDED = 2


class RailRegisters:
    """Registers for the blocks of one rail, which `layout` sets from their counts.

    Parameters
    ----------
    out : Schedule
        The pen.
    ranks : list of int
        Ranks with these blocks.
    problem : Problem
        Gives the bounds, as far as they are known.
    root : int
        The rank that sends the counts.

    Attributes
    ----------
    buffer : int
        Scratch for all blocks.
    ready : tuple of int
        The steps that set the registers.
    """

    def __init__(self, out: Schedule, ranks: list[int], problem: Problem, root: int) -> None:
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


def beyond(nodes: NodeTiers, home: int, rail: int) -> list[tuple[int, int, int]]:
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


def hierarchical_gatherv(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a gather of blocks of any sizes.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``gatherv``.
    """
    nodes, root = nodes_of(problem.topology), problem.root
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(INPUT, 0, out.buffers[INPUT].items)
    if out.rank == root:
        yield from _take_v(out, problem, nodes, home)
    elif node == home:
        out.send(root, own)
        if me < nodes.rails:
            yield from _forward(out, problem, nodes, home, me)
    elif me >= nodes.rails:
        out.send(nodes.members[node][me % nodes.rails], own, empty=True)
    else:
        _hand_on(out, problem, nodes, home, me)


def _hand_on(out: Schedule, problem: Problem, nodes: NodeTiers, home: int, me: int) -> None:
    """On a gateway elsewhere: send the blocks of this rank and of ranks behind it."""
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
    out: Schedule, problem: Problem, nodes: NodeTiers, home: int, me: int
) -> Generator[None, None, None]:
    """On a port of the root's node: pass on the blocks of the rail."""
    served = beyond(nodes, home, me)
    layout = RailRegisters(out, [rank for rank, _, _ in served], problem, problem.root)
    coming = Window(WIDTH, layout.ready)
    for index, (_, port, place) in enumerate(served):
        block = layout.block(index)
        came = out.receive(port, block, place, coming.credit())
        coming.admit(came)
        out.send(problem.root, block, FORWARDED + index, (came,))
        yield


def _take_v(
    out: Schedule, problem: Problem, nodes: NodeTiers, home: int
) -> Generator[None, None, None]:
    """On the root: tell the ports the counts, take every block in its place."""
    assert problem.counts is not None
    blocks = by_rank(OUTPUT, problem.counts)
    out.copy(Block(INPUT, 0, blocks[out.rank].count), blocks[out.rank])
    peers = nodes.members[home]
    for rail in range(nodes.rails):
        served = beyond(nodes, home, rail)
        if peers[rail] != out.rank:
            table = out.constant(problem.counts[[rank for rank, _, _ in served]])
            out.send(peers[rail], Block(table, 0, len(served)))
        coming = Window(WIDTH)
        for index, (rank, port, place) in enumerate(served):
            at_port = peers[rail] == out.rank
            peer, slot = (port, place) if at_port else (peers[rail], FORWARDED + index)
            coming.admit(out.receive(peer, blocks[rank], slot, coming.credit(), empty=True))
            yield
    for peer in peers:
        if peer != out.rank:
            out.receive(peer, blocks[peer])


HIERARCHICAL_V = (
    Algorithm(
        "hierarchical", hierarchical_gatherv, refuses=flat, classes=linear_classes, symbolic=True
    ),
)
