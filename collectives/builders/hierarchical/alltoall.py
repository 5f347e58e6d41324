"""All-to-all in two hops: inside the node to the right rail, then along it.

Every rank gives port ``k`` of its own node what is meant for the ranks behind
the ``k``-th ports of all nodes; each rail exchanges one message a pair of
nodes; ports hand over to ranks that are none.  With N nodes of L ranks a rank
sends ``N + L - 2`` messages instead of ``N L - 1``, and not a byte more
between nodes [1]_.

References
----------
.. [1] C. Hwang et al. Tutel: adaptive mixture-of-experts at scale. MLSys 2023
   (two-dimensional hierarchical all-to-all).  Here nodes may be uneven and
   ranks mapped to them in any way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from closeranks.collectives.builders.patterns.node_classes import alltoall_classes
from closeranks.collectives.builders.patterns.two_tiers import Nodes, nodes_of, pieces
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Window

#: Messages in flight along a rail.
_WIDTH = 16


def build(out: Script, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of an all-to-all of equal blocks.

    Parameters
    ----------
    out : Script
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

    def __init__(self, out: Script, nodes: Nodes, count: int) -> None:
        self.out, self.nodes, self.count = out, nodes, count
        self.home = int(nodes.node[out.rank])
        self.me = int(nodes.local[out.rank])
        self.mates = nodes.members[self.home]
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
                out.send(self.mates[rail], block, 0, copies)
            start += block.count
        return kept

    def collect(self) -> tuple[int, list[After]]:
        """Take what the node's ranks give; return the buffer and what to wait for."""
        width = sum(self.widths) * self.count
        buffer = self.out.scratch(len(self.mates) * width)
        ready: list[After] = []
        for place, mate in enumerate(self.mates):
            if place == self.me:
                ready.append(self.give(own=buffer))
            else:
                ready.append((self.out.receive(mate, Block(buffer, place * width, width)),))
        return buffer, ready

    def exchange(
        self, collected: tuple[int, list[After]]
    ) -> Generator[None, None, tuple[int, After]]:
        """Turn to one message a node, exchange along the rail; return what to await."""
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
            sends.admit(out.send(rail[to], block, turn, sends.gate()))
            block = Block(arrived, firsts[source], firsts[source + 1] - firsts[source])
            receives.admit(out.receive(rail[source], block, turn, receives.gate()))
            yield
        return arrived, (kept, *receives.tail())

    def hand_over(self, arrived: int, ready: After) -> None:
        """Give each rank behind this port what came for it."""
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
        """Receive from the gateway what comes from everybody."""
        out, total = self.out, len(self.nodes.order) * self.count
        arrived = self._arrival(self.count)
        port = self.mates[self.me % self.nodes.rails]
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
            starts.append(starts[-1] + len(self.mates) * width * self.count)
        return starts

    def _turn(self, buffer: int, going: int, starts: list[int], ready: list[After]) -> After:
        """Copy from [mate][node] to [node][mate]: few copies where nodes are equal."""
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


ALGORITHMS = (Algorithm("hierarchical", build, refuses=flat, classes=alltoall_classes),)
