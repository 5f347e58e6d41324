"""All-to-all, of equal blocks and of given counts: flat, and in two hops.

In two hops, every block travels inside the node to the right rail, then along
the rail.  Every rank gives port ``k`` of its own node the data for the ranks
behind the ``k``-th ports of all nodes.  Each rail exchanges one message a pair
of nodes.  Ports pass the data on to ranks that are no ports.  With N nodes of
L ranks a rank sends ``N + L - 2`` messages instead of ``N L - 1``, and not a
byte more between nodes [1]_.

With blocks of any sizes, a rank knows its own counts, but a gateway does not.
So the counts make the same two hops before the data, and kernels compute from
them where every message starts.  That is eight bytes a pair of ranks more, and
the few messages twice.

References
----------
.. [1] C. Hwang et al. Tutel: adaptive mixture-of-experts at scale. MLSys 2023
   (two-dimensional hierarchical all-to-all).  Here nodes may be uneven and
   ranks mapped to them in any way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.bruck import bruck_alltoall
from closeranks.collectives.builders.patterns.direct_exchange import (
    PAIRED,
    POSTED,
    pairwise_alltoall,
)
from closeranks.collectives.builders.patterns.round_classes import bruck_items, shift_rounds
from closeranks.collectives.builders.patterns.tier_classes import alltoall_classes
from closeranks.collectives.builders.patterns.two_tiers import NodeTiers, nodes_of, pieces
from closeranks.collectives.plans import apply_kernels  # noqa: F401 - registers kernels
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Window, Writing, seats
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, classify, to_everybody
from closeranks.collectives.plans.schedule import After, Schedule


def _exchange(out: Schedule, problem: Problem, *, width: int) -> Writing:
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    return pairwise_alltoall(
        out,
        members,
        me,
        lambda j: source(members[j]),
        lambda j: target(members[j]),
        (),
        0,
        width=width,
    )


def _blocks(out: Schedule, problem: Problem) -> tuple[Chunks, Chunks]:
    """Blocks by rank, before and after."""
    if problem.counts is None:
        return even(INPUT, problem.count), even(OUTPUT, problem.count)
    sent, received = problem.sent_by(out.rank), problem.received_by(out.rank)
    return packed(INPUT, sent), packed(OUTPUT, received)


def _classes(problem: Problem) -> Ints:
    if problem.counts is None:
        return to_everybody(problem.topology, np.full(problem.size, problem.count))
    columns = []
    for row in problem.topology.groups:
        inside = row[:, None] == row[None, :]
        columns.append(np.where(inside, problem.counts, 0).sum(axis=1))
        columns.append((inside & (problem.counts > 0)).sum(axis=1))
    columns += [problem.counts.sum(axis=1), (problem.counts > 0).sum(axis=1)]
    return classify(problem.size, columns)


def _bruck(out: Schedule, problem: Problem) -> Writing:
    size, items = problem.size, problem.size * problem.count
    source, target = Block(INPUT, 0, items), Block(OUTPUT, 0, items)
    return bruck_alltoall(out, range(size), out.rank, source, target, (), 0)


def _bruck_classes(problem: Problem) -> Ints:
    size = problem.size
    rounds = shift_rounds(size, bruck_items(size, problem.count, alltoall=True))
    return by_rounds(problem.topology, np.arange(size), rounds)


_ANY_COUNTS = (
    Algorithm("pairwise", partial(_exchange, width=PAIRED), classes=_classes),
    Algorithm("linear", partial(_exchange, width=POSTED), classes=_classes),
)

ALGORITHMS = (*_ANY_COUNTS, Algorithm("bruck", _bruck, classes=_bruck_classes, follows=False))

ALGORITHMS_V = _ANY_COUNTS


#: Messages in flight along a rail.
_WIDTH = 16


def hierarchical_alltoall(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-to-all of equal blocks.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``alltoall``.
    """
    hops = _Hops(out, nodes_of(problem.topology), problem.count)
    if hops.me >= hops.nodes.rails:
        hops.give(own=-1)
        hops.take_all()
        return
    collected = hops.collect()
    yield
    arrived, ready = yield from hops.exchange(collected)
    hops.hand_over(arrived, ready)


class _Hops:
    """One rank's way through the two hops."""

    def __init__(self, out: Schedule, nodes: NodeTiers, count: int) -> None:
        self.out, self.nodes, self.count = out, nodes, count
        self.home = int(nodes.node[out.rank])
        self.me = int(nodes.local[out.rank])
        self.peers = nodes.members[self.home]
        #: How many ranks the own rail serves, in each node; and which, here.
        self.widths = nodes.widths[self.me % nodes.rails]
        self.behind = nodes.served(self.home, self.me % nodes.rails)

    def give(self, own: int) -> After:
        """Pack for every port of the node and send; to the own buffer ``own`` if a port."""
        out, nodes, count = self.out, self.nodes, self.count
        packed = out.scratch(len(nodes.order) * count)
        start = 0
        kept: After = ()
        for rail in range(nodes.rails):
            ranks, folded = nodes.through(rail)
            block = Block(packed, start, len(ranks) * count)
            if rail == self.me:
                block = Block(own, self.me * len(ranks) * count, block.count)
            copies = tuple(
                out.copy(user, Block(block.buffer, block.start + at * count, user.items))
                for at, user in pieces(folded, INPUT, count)
            )
            if rail == self.me:
                kept = copies
            else:
                out.send(self.peers[rail], block, 0, copies)
            start += block.count
        return kept

    def collect(self) -> tuple[int, list[After]]:
        """Take the blocks of the node's ranks; return buffer and steps to wait for."""
        width = sum(self.widths) * self.count
        buffer = self.out.scratch(len(self.peers) * width)
        ready: list[After] = []
        for place, peer in enumerate(self.peers):
            if place == self.me:
                ready.append(self.give(own=buffer))
            else:
                ready.append((self.out.receive(peer, Block(buffer, place * width, width)),))
        return buffer, ready

    def exchange(
        self, collected: tuple[int, list[After]]
    ) -> Generator[None, None, tuple[int, After]]:
        """Turn to one message a node, exchange along the rail; return steps to await."""
        out, count, nodes = self.out, self.count, self.nodes
        rail, size = nodes.rail(self.me), len(nodes)
        buffer, ready = collected
        going, starts = out.scratch(out.buffers[buffer].items), self._starts()
        turned = self._turn(buffer, going, starts, ready)
        behind = len(self.behind) * count
        arrived = self._arrival(behind)
        firsts = [0]
        for members in nodes.members:
            firsts.append(firsts[-1] + len(members) * behind)
        sends, receives = Window(_WIDTH, turned), Window(_WIDTH)
        kept = out.copy(
            Block(going, starts[self.home], starts[self.home + 1] - starts[self.home]),
            Block(arrived, firsts[self.home], firsts[self.home + 1] - firsts[self.home]),
            turned,
        )
        for turn in range(1, size):
            to, source = (self.home + turn) % size, (self.home - turn) % size
            block = Block(going, starts[to], starts[to + 1] - starts[to])
            sends.admit(out.send(rail[to], block, turn, sends.credit()))
            block = Block(arrived, firsts[source], firsts[source + 1] - firsts[source])
            receives.admit(out.receive(rail[source], block, turn, receives.credit()))
            yield
        return arrived, (kept, *receives.tail())

    def hand_over(self, arrived: int, ready: After) -> None:
        """Give each rank behind this port its blocks."""
        out, count, total = self.out, self.count, len(self.nodes.order)
        behind = self.behind
        for place, rank in enumerate(behind):
            if rank != out.rank:
                packed = out.scratch(total * count)
                came = Block(arrived, place * count, count, total, len(behind) * count)
                copied = out.copy(came, Block(packed, 0, total * count), ready)
                out.send(rank, Block(packed, 0, total * count), 2, (copied,))
        if arrived != OUTPUT:
            self._unpack(arrived, len(behind), ready)

    def take_all(self) -> None:
        """Receive the blocks of all ranks from the gateway."""
        out, total = self.out, len(self.nodes.order) * self.count
        arrived = self._arrival(self.count)
        port = self.peers[self.me % self.nodes.rails]
        came = out.receive(port, Block(arrived, 0, total), 2)
        if arrived != OUTPUT:
            self._unpack(arrived, 1, (came,))

    def _arrival(self, behind: int) -> int:
        """Buffer for arrivals, node by node: the output where that is its order."""
        folded = self.nodes.folded
        if behind == self.count and len(folded) == 1 and folded[0].stride == 1:
            return OUTPUT
        return self.out.scratch(len(self.nodes.order) * behind)

    def _unpack(self, arrived: int, behind: int, ready: After) -> None:
        count = self.count
        for at, user in pieces(self.nodes.folded, OUTPUT, count):
            came = Block(arrived, at * count, user.items)
            if behind > 1 and count:
                repeat, stride = user.items // count, behind * count
                came = Block(arrived, at * stride, count, repeat, stride)
            self.out.copy(came, user, ready)

    def _starts(self) -> list[int]:
        """Where the message to each node starts, in packed items, and the end."""
        starts = [0]
        for width in self.widths:
            starts.append(starts[-1] + len(self.peers) * width * self.count)
        return starts

    def _turn(self, buffer: int, going: int, starts: list[int], ready: list[After]) -> After:
        """Copy from [peer][node] to [node][peer]: few copies where nodes are equal."""
        width = sum(self.widths) * self.count
        turned = []
        for place, after in enumerate(ready):
            at = place * width
            for node, repeat, items in self._equal_runs():
                block = Block(going, starts[node] + place * items, items)
                if repeat > 1:
                    stride = starts[node + 1] - starts[node]
                    block = block._replace(repeat=repeat, stride=stride)
                turned.append(self.out.copy(Block(buffer, at, items * repeat), block, after))
                at += items * repeat
        return tuple(turned)

    def _equal_runs(self) -> Iterator[tuple[int, int, int]]:
        """Give runs of nodes with as many ranks behind this rail: first, count, items."""
        first, size = 0, len(self.widths)
        for node in range(1, size + 1):
            if node == size or self.widths[node] != self.widths[first]:
                yield first, node - first, self.widths[first] * self.count
                first = node


HIERARCHICAL = (
    Algorithm("hierarchical", hierarchical_alltoall, refuses=flat, classes=alltoall_classes),
)


IntArray = NDArray[np.int64]
#: Stands for a count that a rank cannot know.
_UNKNOWN = 1 << 62
#: Slots: counts, data, what a gateway hands over.
_COUNTS, _DATA, _HANDED = range(3)


def hierarchical_alltoallv(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-to-all of blocks of any sizes.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``alltoallv``.
    """
    hops = _HopsV(out, problem)
    given = hops.give()
    yield
    if hops.me >= hops.nodes.rails:
        port = hops.peers[hops.me % hops.nodes.rails]
        out.receive(port, Block(OUTPUT, 0, out.buffers[OUTPUT].items), _HANDED, empty=True)
        return
    going = hops.turn(*hops.collect(*given))
    yield
    coming = yield from hops.exchange_counts(going)
    ready = yield from hops.exchange(going, coming)
    hops.hand_over(coming, ready)


class _Going(NamedTuple):
    """Outgoing data of a rail: turned counts, registers, steps that data waits for."""

    table: int
    buffer: int
    layout: list[int]
    counted: After
    ready: After


class _Coming(NamedTuple):
    """Incoming data of a rail, and its part for the ranks behind."""

    table: int
    buffer: int
    layout: list[int]
    behind: list[int]
    counted: After


class _HopsV:
    """One rank's way through the two hops."""

    def __init__(self, out: Schedule, problem: Problem) -> None:
        self.out, self.problem = out, problem
        self.nodes: NodeTiers = nodes_of(problem.topology)
        nodes = self.nodes
        self.home = int(nodes.node[out.rank])
        self.me = int(nodes.local[out.rank])
        self.peers = nodes.members[self.home]
        rail = self.me % nodes.rails
        #: How many ranks the own rail serves, in each node; and which, here.
        self.widths = nodes.widths[rail]
        self.behind = nodes.served(self.home, rail)
        self.width = sum(self.widths)

    def give(self) -> tuple[Block, Block, After]:
        """Send counts and data to every port; return the data of the own rail."""
        out, nodes, sent = self.out, self.nodes, self.problem.sent_by(self.out.rank)
        orders = [nodes.through(rail)[0] for rail in range(nodes.rails)]
        order = np.concatenate(orders).astype(np.int64)
        size, total = len(order), int(sent.sum())
        counts = out.constant(sent[order])
        reads = (
            Block(out.constant(order), 0, size),
            Block(out.constant(np.asarray(sent, dtype=np.int64)), 0, size),
            Block(INPUT, 0, total),
        )
        packed = out.scratch(total)
        ready = (out.apply("pick", reads, (Block(packed, 0, total),)),)
        own = Block(counts, 0, 0), Block(packed, 0, 0)
        at = start = 0
        for rail, ranks in enumerate(orders):
            table = Block(counts, at, len(ranks))
            data = Block(packed, start, int(sent[ranks].sum()))
            at, start = at + len(ranks), start + data.count
            if rail == self.me:
                own = table, data
            else:
                out.send(self.peers[rail], table, _COUNTS)
                out.send(self.peers[rail], data, _DATA, ready, empty=True)
        return *own, ready

    def collect(
        self, table: Block, data: Block, ready: After
    ) -> tuple[int, list[Block], After, After]:
        """Take the peers' data for this rail; return counts, data, steps to await."""
        out, width = self.out, self.width
        tables = out.scratch(len(self.peers) * width, 8)
        blocks, counted, came = [], [], list(ready)
        for place, peer in enumerate(self.peers):
            row = Block(tables, place * width, width)
            if place == self.me:
                counted.append(out.copy(table, row))
                blocks.append(data)
                continue
            counted.append(out.receive(peer, row, _COUNTS))
            count = out.register(self._sum([peer], self.nodes.through(self.me)[0]))
            blocks.append(Block(out.scratch(count), 0, count))
            came.append(out.receive(peer, blocks[-1], _DATA))
        return tables, blocks, tuple(counted), tuple(came)

    def turn(self, tables: int, blocks: list[Block], counted: After, came: After) -> _Going:
        """Turn counts and data to one message a node."""
        out, size = self.out, len(self.peers) * self.width
        shape = np.array([len(self.peers), *self.widths], dtype=np.int64)
        reads = Block(out.constant(shape), 0, len(shape)), Block(tables, 0, size)
        table = out.scratch(size, 8)
        layout = self._registers(
            [
                self._sum(self.peers, self.nodes.served(node, self.me))
                for node in range(len(self.nodes))
            ]
        )
        turned = out.apply("turn_layout", reads, (Block(table, 0, size),), layout, counted)
        buffer = out.scratch(layout[0])
        target = Block(buffer, 0, layout[0])
        ready = out.apply("turn", (*reads, *blocks), (target,), (), (turned, *came))
        return _Going(table, buffer, layout, (turned,), (ready,))

    def exchange_counts(self, going: _Going) -> Generator[None, None, _Coming]:
        """Tell the rail the counts to come."""
        out, nodes, behind = self.out, self.nodes, self.behind
        theirs = [len(members) * len(behind) for members in nodes.members]
        ours = [len(self.peers) * width for width in self.widths]
        table = out.scratch(sum(theirs), 8)
        ready = yield from self._along(
            _packed(going.table, ours), _packed(table, theirs), _COUNTS, going.counted, ()
        )
        shape = np.array([len(behind), *map(len, nodes.members)], dtype=np.int64)
        reads = Block(out.constant(shape), 0, len(shape)), Block(table, 0, sum(theirs))
        layout = self._registers([self._sum(members, behind) for members in nodes.members])
        totals = [out.register(self._sum(nodes.order, [rank])) for rank in behind[1:]]
        counted = out.apply("arrival_layout", reads, (), (*layout, *totals), ready)
        return _Coming(table, out.scratch(layout[0]), layout, totals, (counted,))

    def exchange(self, going: _Going, coming: _Coming) -> Generator[None, None, After]:
        """Send and receive the data along the rail."""
        return (
            yield from self._along(
                self._blocks(going.buffer, going.layout),
                self._blocks(coming.buffer, coming.layout),
                _DATA, going.ready, coming.counted,
            )
        )  # fmt: skip

    def hand_over(self, coming: _Coming, ready: After) -> None:
        """Deal the data out to this rank and the ranks behind it."""
        out, order = self.out, np.array(self.nodes.order, dtype=np.int64)
        behind = self.behind
        mine = Block(OUTPUT, 0, out.buffers[OUTPUT].items)
        others = [Block(out.scratch(total), 0, total) for total in coming.behind]
        reads = (
            Block(out.constant(order), 0, len(order)),
            Block(coming.table, 0, len(order) * len(behind)),
            Block(coming.buffer, 0, coming.layout[0]),
        )
        dealt = out.apply("deal", reads, (mine, *others), (), ready)
        for rank, block in zip(behind[1:], others, strict=True):
            out.send(rank, block, _HANDED, (dealt,))

    def _along(
        self, going: list[Block], coming: list[Block], slot: int, ready: After, free: After
    ) -> Generator[None, None, After]:
        """Exchange blocks with every node along the rail; return when all are here."""
        out, size, rail = self.out, len(self.nodes), self.nodes.rail(self.me)
        sends, receives = Window(_WIDTH, ready), Window(_WIDTH, free)
        kept = out.copy(going[self.home], coming[self.home], ready + free)
        for turn in range(1, size):
            to, source = (self.home + turn) % size, (self.home - turn) % size
            sends.admit(out.send(rail[to], going[to], slot, sends.credit()))
            receives.admit(out.receive(rail[source], coming[source], slot, receives.credit()))
            yield
        return kept, *receives.tail()

    def _blocks(self, buffer: int, layout: list[int]) -> list[Block]:
        size = len(self.nodes)
        counts, starts = layout[1 : size + 1], layout[size + 1 :]
        return [Block(buffer, s, c) for s, c in zip(starts, counts, strict=True)]

    def _registers(self, counts: list[int]) -> list[int]:
        """Declare registers for `layout` of messages of at most these counts."""
        known = _UNKNOWN not in counts
        total = sum(counts) if known else _UNKNOWN
        starts = [0, *accumulate(counts[:-1])] if known else counts
        return [self.out.register(bound) for bound in (total, *counts, *starts)]

    def _sum(self, sources: list[int], targets: list[int]) -> int:
        """Items from some ranks to others, where the whole truth is known."""
        if self.problem.local:
            return _UNKNOWN
        assert self.problem.counts is not None
        return int(self.problem.counts[np.ix_(sources, targets)].sum())


def _packed(buffer: int, counts: list[int]) -> list[Block]:
    """Blocks of given counts, one after the other."""
    ends = accumulate(counts)
    return [Block(buffer, end - count, count) for end, count in zip(ends, counts, strict=True)]


HIERARCHICAL_V = (
    Algorithm(
        "hierarchical",
        hierarchical_alltoallv,
        refuses=flat,
        classes=alltoall_classes,
        symbolic=True,
    ),
)
