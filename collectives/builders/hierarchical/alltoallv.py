"""All-to-all of blocks of any sizes in two hops, counts first along the same way.

A rank knows what it sends and what it gets, a gateway does not: so the counts
make the two hops of the hierarchical all-to-all before the data, and kernels
read off them where every message starts.  Eight bytes a pair of ranks more,
and as few messages twice.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.node_classes import alltoall_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, nodes_of
from closeranks.collectives.plans import regroup  # noqa: F401 - registers kernels
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Window

Ints = NDArray[np.int64]
#: Stands for a count that a rank cannot know.
_UNKNOWN = 1 << 62
#: Messages in flight along a rail.
_WIDTH = 16
#: Slots: counts, data, what a gateway hands over.
_COUNTS, _DATA, _HANDED = range(3)


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-to-all of blocks of any sizes.

    Parameters
    ----------
    out : Script
        The pen.
    problem : Problem
        ``alltoallv``.
    """
    hops = _Hops(out, problem)
    given = hops.give()
    yield
    if hops.me >= hops.nodes.rails:
        port = hops.mates[hops.me % hops.nodes.rails]
        out.receive(port, Block(OUTPUT, 0, out.buffers[OUTPUT].items), _HANDED, empty=True)
        return
    going = hops.turn(*hops.collect(*given))
    yield
    coming = yield from hops.exchange_counts(going)
    ready = yield from hops.exchange(going, coming)
    hops.hand_over(coming, ready)


class _Going(NamedTuple):
    """What leaves along the rail: the turned counts, registers, what data waits for."""

    table: int
    buffer: int
    layout: list[int]
    counted: After
    ready: After


class _Coming(NamedTuple):
    """What arrives along the rail, and how much of it is for the ranks behind."""

    table: int
    buffer: int
    layout: list[int]
    behind: list[int]
    counted: After


class _Hops:
    """One rank's way through the two hops."""

    def __init__(self, out: Script, problem: Problem) -> None:
        self.out, self.problem = out, problem
        self.nodes: Nodes = nodes_of(problem.topology)
        nodes = self.nodes
        self.home = int(nodes.node[out.rank])
        self.me = int(nodes.local[out.rank])
        self.mates = nodes.members[self.home]
        rail = self.me % nodes.rails
        #: How many ranks the own rail serves, in each node; and which, here.
        self.widths = nodes.widths[rail]
        self.behind = nodes.served(self.home, rail)
        self.width = sum(self.widths)

    def give(self) -> tuple[Block, Block, After]:
        """Send counts and data to every port; return what the own rail takes."""
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
                out.send(self.mates[rail], table, _COUNTS)
                out.send(self.mates[rail], data, _DATA, ready, empty=True)
        return *own, ready

    def collect(
        self, table: Block, data: Block, ready: After
    ) -> tuple[int, list[Block], After, After]:
        """Take what mates give for this rail; return counts, data, what to wait for."""
        out, width = self.out, self.width
        tables = out.scratch(len(self.mates) * width, 8)
        blocks, counted, came = [], [], list(ready)
        for place, mate in enumerate(self.mates):
            row = Block(tables, place * width, width)
            if place == self.me:
                counted.append(out.copy(table, row))
                blocks.append(data)
                continue
            counted.append(out.receive(mate, row, _COUNTS))
            count = out.register(self._sum([mate], self.nodes.through(self.me)[0]))
            blocks.append(Block(out.scratch(count), 0, count))
            came.append(out.receive(mate, blocks[-1], _DATA))
        return tables, blocks, tuple(counted), tuple(came)

    def turn(self, tables: int, blocks: list[Block], counted: After, came: After) -> _Going:
        """Turn counts and data to one message a node."""
        out, size = self.out, len(self.mates) * self.width
        shape = np.array([len(self.mates), *self.widths], dtype=np.int64)
        reads = Block(out.constant(shape), 0, len(shape)), Block(tables, 0, size)
        table = out.scratch(size, 8)
        layout = self._registers(
            [
                self._sum(self.mates, self.nodes.served(node, self.me))
                for node in range(len(self.nodes))
            ]
        )
        turned = out.apply("turn_layout", reads, (Block(table, 0, size),), layout, counted)
        buffer = out.scratch(layout[0])
        target = Block(buffer, 0, layout[0])
        ready = out.apply("turn", (*reads, *blocks), (target,), (), (turned, *came))
        return _Going(table, buffer, layout, (turned,), (ready,))

    def exchange_counts(self, going: _Going) -> Generator[None, None, _Coming]:
        """Tell the rail what is coming."""
        out, nodes, behind = self.out, self.nodes, self.behind
        theirs = [len(members) * len(behind) for members in nodes.members]
        ours = [len(self.mates) * width for width in self.widths]
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
        """Deal what has come to this rank and those behind it."""
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
            sends.admit(out.send(rail[to], going[to], slot, sends.gate()))
            receives.admit(out.receive(rail[source], coming[source], slot, receives.gate()))
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


ALGORITHMS = (
    Algorithm("hierarchical", build, refuses=flat, classes=alltoall_classes, symbolic=True),
)
