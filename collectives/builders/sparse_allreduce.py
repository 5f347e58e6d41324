"""Sparse all-reduce: index-value pairs of all ranks, combined, on every rank.

An input is one message of pairs with the cuts of the index space in front of
its indices; see `closeranks.collectives.pairs.pair_message`.  How many pairs
travel is known only while a plan runs.

``split`` is the reduce-scatter and all-gather of [1]_, over ports.  Its index
space has a region for each port; those of one rail are neighbours.

1. In a node each port gets what the ranks of the node have for its rail, and
   combines it: once, so that the wire carries what the node has to say.
2. Ports of a rail exchange, each combines its region.
3. Regions go to the other ports of the rail, and from a port to its node.

``doubling`` combines in each node, then by recursive doubling between one rank
of each node: few messages, which grow as pairs meet.

References
----------
.. [1] Renggli and others, SparCML: High-Performance Sparse Communication for
   Machine Learning, SC 2019, section 5.3.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import expm1, log1p, log2
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.two_tiers import NodeTiers, nodes_of
from closeranks.collectives.pairs.pair_kernels import LAYOUT
from closeranks.collectives.pairs.pair_message import HEADER_BYTES
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.schedule import After, Schedule

Writing = Generator[None, None, None]

#: Slots of messages: to ports, between ports, of results, from a port to its node.
_TO_PORT, _TO_OWNER, _RESULT, _IN_NODE = range(4)
#: From so many nodes on a port packs the results of all of them into one message.
_MANY: Final = 16
#: No message is longer.
_MOST_BYTES: Final = 1 << 62


class PairPart(NamedTuple):
    """A message of pairs that is there once ``after`` is done."""

    block: Block
    after: After


def regions(problem: Problem) -> int:
    """Return into how many regions ``split`` cuts the index space."""
    tiers = _tiers(problem)
    return tiers.rails * len(tiers)


def _tiers(problem: Problem) -> NodeTiers:
    """Return nodes, or each rank alone where operands must not change places."""
    if problem.commutative:
        return nodes_of(problem.topology)
    return NodeTiers(np.arange(problem.size))


class _Pairs:
    """Writes steps on messages of pairs.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        Whose pairs.

    Attributes
    ----------
    tiers : NodeTiers
        Nodes and their ports.
    given : int
        Register of the bytes of the input.
    """

    def __init__(self, out: Schedule, problem: Problem) -> None:
        self.out, self.problem, self.tiers = out, problem, _tiers(problem)
        self.given = out.open_input(_MOST_BYTES)

    def edges(self, first: int, parts: int) -> Block:
        """Return the cuts around regions of this rank's rail, from ``first`` on."""
        region = int(self.tiers.local[self.out.rank]) * len(self.tiers) + first
        return Block(INPUT, HEADER_BYTES + 8 * region, 8 * (parts + 1))

    def size(self, ranks: int, share: int) -> int:
        """Expect the bytes of the pairs of some ranks in one ``share``-th of the indices."""
        problem = self.problem
        span = max(problem.length // share, 1)
        density = min(problem.count / max(problem.length, 1), 1.0)
        there = 1.0 if density == 1.0 else -expm1(ranks * log1p(-density))
        pairs = max(span * there, 1e-9)
        gap = max(log2(span / pairs), 0) / 7 if pairs < span else 0
        coded = min(pairs * (1 + gap), span / 8)
        return HEADER_BYTES + int(coded + pairs * problem.itemsize)

    def _register(self, expected: int) -> int:
        return self.out.register(_MOST_BYTES, expected)

    def cut(
        self, message: PairPart, edges: Block, ranks: int, share: int, whole: int
    ) -> list[PairPart]:
        """Cut a message at ``edges``; part ``whole`` stays here, the others are coded."""
        out, parts = self.out, edges.items // 8 - 1
        size = self.size(ranks, share)
        layout = out.scratch(LAYOUT * parts, 8)
        here = out.constant(np.array([whole]))
        starts = [self._register(size * part) for part in range(parts)]
        sizes = [self._register(size) for _ in range(parts)]
        total = self._register(size * parts)
        planned = out.apply(
            "pair_layout",
            [edges, message.block, Block(here, 0, 1)],
            [Block(layout, 0, LAYOUT * parts)],
            [total, *starts, *sizes],
            message.after,
        )
        room = out.scratch(total, 1)
        done = out.apply(
            "pair_split",
            [edges, message.block, Block(layout, 0, LAYOUT * parts)],
            [Block(room, 0, total)],
            after=(planned,),
        )
        return [
            PairPart(Block(room, start, count), (done,))
            for start, count in zip(starts, sizes, strict=True)
        ]

    def receive(self, peer: int, slot: int, ranks: int, share: int) -> PairPart:
        """Receive a message of unknown size."""
        count = self._register(self.size(ranks, share))
        block = Block(self.out.scratch(count, 1), 0, count)
        return PairPart(block, (self.out.receive(peer, block, slot),))

    def send(self, peer: int, message: PairPart, slot: int) -> None:
        """Send a message."""
        self.out.send(peer, message.block, slot, message.after)

    def merge(self, messages: Sequence[PairPart], ranks: int, share: int) -> PairPart:
        """Combine messages of equal bounds, in their order."""
        return self._made("pair_room", "pair_merge", messages, self.size(ranks, share))

    def pack(self, messages: Sequence[PairPart], ranks: int, share: int) -> PairPart:
        """Make one message of several."""
        size = len(messages) * self.size(ranks, share)
        return self._made("pair_bytes", "pair_pack", messages, size)

    def _made(self, measure: str, make: str, messages: Sequence[PairPart], size: int) -> PairPart:
        if len(messages) == 1:
            return messages[0]
        out, blocks = self.out, [message.block for message in messages]
        total = self._register(size)
        after = tuple(step for message in messages for step in message.after)
        sized = out.apply(measure, blocks, sets=[total], after=after)
        block = Block(out.scratch(total, 1), 0, total)
        return PairPart(block, (out.apply(make, blocks, [block], after=(sized,)),))

    def join(self, messages: Sequence[PairPart]) -> None:
        """Write the output: all messages, in the order of their indices."""
        out, blocks = self.out, [message.block for message in messages]
        total = self._register(self.size(self.problem.size, 1))
        out.open_output(total)
        after = tuple(step for message in messages for step in message.after)
        sized = out.apply("pair_total", blocks, sets=[total], after=after)
        out.apply("pair_join", blocks, [Block(OUTPUT, 0, total)], after=(sized,))


def build_split(out: Schedule, problem: Problem) -> Writing:
    """Write the plan of ``split``."""
    pairs = _Pairs(out, problem)
    own = yield from _reduced_region(pairs)
    results = [] if own is None else (yield from _gathered_on_rail(pairs, own))
    yield
    _share_in_node(pairs, results)


def build_reduce_scatter(out: Schedule, problem: Problem) -> Writing:
    """Write the first half of ``split``: a port gets its region, other ranks nothing."""
    pairs = _Pairs(out, problem)
    own = yield from _reduced_region(pairs)
    if own is None:
        nothing = Block(INPUT, HEADER_BYTES, 8, 2, 0)  # from the first cut to the first cut
        (own,) = pairs.cut(PairPart(Block(INPUT, 0, pairs.given), ()), nothing, 1, 1, 0)
    else:
        node = int(pairs.tiers.node[out.rank])
        (own,) = pairs.cut(own, pairs.edges(node, 1), problem.size, regions(problem), 0)
    pairs.join([own])


def _reduced_region(pairs: _Pairs) -> Generator[None, None, PairPart | None]:
    """Reduce regions, in nodes and then between them; None on ranks that are no port."""
    tiers, me = pairs.tiers, pairs.out.rank
    rails, nodes, rail = tiers.rails, len(tiers), int(tiers.local[me])
    members = tiers.members[int(tiers.node[me])]
    merged = PairPart(Block(INPUT, 0, pairs.given), ())
    if len(members) > 1:
        edges = Block(INPUT, HEADER_BYTES, 8, rails + 1, 8 * nodes)
        parts = pairs.cut(merged, edges, 1, rails, rail if rail < rails else -1)
        for port, part in zip(members[:rails], parts, strict=True):
            if port != me:
                pairs.send(port, part, _TO_PORT)
        if rail >= rails:
            return None
        operands = [
            parts[rail] if peer == me else pairs.receive(peer, _TO_PORT, 1, rails)
            for peer in members
        ]
        merged = pairs.merge(operands, len(members), rails)
    yield
    node, ring, share = int(tiers.node[me]), tiers.rail(rail), regions(pairs.problem)
    parts = pairs.cut(merged, pairs.edges(0, nodes), len(members), share, node)
    for other, part in zip(ring, parts, strict=True):
        if other != me:
            pairs.send(other, part, _TO_OWNER)
    operands = [
        parts[node] if other == me else pairs.receive(other, _TO_OWNER, len(members), share)
        for other in ring
    ]
    yield
    return pairs.merge(operands, pairs.problem.size, share)


def _gathered_on_rail(pairs: _Pairs, own: PairPart) -> Generator[None, None, list[PairPart]]:
    """Give the ports of a rail all its regions."""
    tiers, me, size = pairs.tiers, pairs.out.rank, pairs.problem.size
    node, nodes, share = int(tiers.node[me]), len(tiers), regions(pairs.problem)
    ring = tiers.rail(int(tiers.local[me]))
    (own,) = pairs.cut(own, pairs.edges(node, 1), size, share, 0 if size == 1 else -1)
    for place in range(1, nodes):
        pairs.send(ring[(node + place) % nodes], own, _RESULT)
    results = [own]
    results += [
        pairs.receive(ring[(node - place) % nodes], _RESULT, size, share)
        for place in range(1, nodes)
    ]
    yield
    return results


def _share_in_node(pairs: _Pairs, results: list[PairPart]) -> None:
    """Send a port's regions to its node; join those of all ports."""
    tiers, me, size = pairs.tiers, pairs.out.rank, pairs.problem.size
    members, nodes = tiers.members[int(tiers.node[me])], len(tiers)
    ports = members[: tiers.rails]
    share = nodes * len(ports)
    packs, count = (1, nodes) if nodes > _MANY else (nodes, 1)
    if results and len(members) > 1:
        sent = [pairs.pack(results, size, share)] if packs == 1 else results
        for place, message in enumerate(sent):
            for peer in members:
                if peer != me:
                    pairs.send(peer, message, _IN_NODE + place)
    for port in ports:
        if port != me:
            results += [
                pairs.receive(port, _IN_NODE + place, size, max(share // count, 1))
                for place in range(packs)
            ]
    pairs.join(results)


def build_doubling(out: Schedule, problem: Problem) -> Writing:
    """Write the plan of ``doubling``."""
    pairs = _Pairs(out, problem)
    tiers, me = pairs.tiers, out.rank
    node = int(tiers.node[me])
    members = tiers.members[node]
    # All indices are one part here: the first and the last cut are its bounds.
    edges = Block(INPUT, HEADER_BYTES, 8, 2, 8 * regions(problem))
    leads = members[0] == me
    mine = PairPart(Block(INPUT, 0, pairs.given), ())
    (own,) = pairs.cut(mine, edges, 1, 1, 0 if leads else -1)
    if not leads:
        pairs.send(members[0], own, _TO_PORT)
        yield
        pairs.join([pairs.receive(members[0], _IN_NODE, problem.size, 1)])
        return
    arrived = [own] + [pairs.receive(peer, _TO_PORT, 1, 1) for peer in members[1:]]
    yield
    merged = pairs.merge(arrived, len(members), 1)
    merged = yield from _doubled(pairs, merged, tiers.rail(0), node, edges)
    if problem.size == 1:
        pairs.join([merged])
        return
    (coded,) = pairs.cut(merged, edges, problem.size, 1, -1)
    for peer in members[1:]:
        pairs.send(peer, coded, _IN_NODE)
    pairs.join([coded])


def _doubled(
    pairs: _Pairs, merged: PairPart, ring: list[int], node: int, edges: Block
) -> Generator[None, None, PairPart]:
    """Combine over the leaders by recursive doubling; neighbours fold first.

    Of the first ``2 * extra`` leaders the odd ones take part for two.
    Operands keep their order, so that all leaders compute the same bits.
    """
    nodes, problem = len(ring), pairs.problem
    core = 1 << (nodes.bit_length() - 1)
    extra = nodes - core
    per_node = -(-problem.size // nodes)

    def coded(message: PairPart, ranks: int) -> PairPart:
        return pairs.cut(message, edges, ranks, 1, -1)[0]

    ranks = per_node
    if node < 2 * extra:
        partner = node ^ 1
        if node % 2 == 0:
            pairs.send(ring[partner], coded(merged, ranks), _TO_OWNER)
            yield
            return pairs.receive(ring[partner], _RESULT, problem.size, 1)
        merged = pairs.merge(
            [pairs.receive(ring[partner], _TO_OWNER, ranks, 1), merged], 2 * ranks, 1
        )
    place = node // 2 if node < 2 * extra else node - extra
    step = 1
    while step < core:
        other = place ^ step
        peer = ring[2 * other + 1 if other < extra else other + extra]
        pairs.send(peer, coded(merged, ranks), _RESULT + step)
        theirs = pairs.receive(peer, _RESULT + step, ranks, 1)
        yield
        ranks = min(2 * ranks, problem.size)
        pair = [merged, theirs] if place < other else [theirs, merged]
        merged = pairs.merge(pair, ranks, 1)
        step *= 2
    if node < 2 * extra:
        pairs.send(ring[node ^ 1], coded(merged, problem.size), _RESULT)
    return merged


def split_classes(problem: Problem) -> NDArray[np.int64]:
    """Classes of ranks of ``split``: ports and others, by the size of their node."""
    tiers = _tiers(problem)
    return _numbered(np.bincount(tiers.node)[tiers.node], tiers.local < tiers.rails)


def doubling_classes(problem: Problem) -> NDArray[np.int64]:
    """Classes of ranks of ``doubling``: leaders by what folds, and others."""
    tiers = _tiers(problem)
    nodes = len(tiers)
    extra = nodes - (1 << (nodes.bit_length() - 1))
    fold = np.where(tiers.node < 2 * extra, 1 + tiers.node % 2, 0)
    return _numbered(np.bincount(tiers.node)[tiers.node], tiers.local == 0, fold)


def _numbered(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """Give equal numbers to ranks whose columns are equal."""
    _, inverse = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


#: The first half of ``split``, for what chooses among sums before they are gathered.
REDUCE_SCATTER = Algorithm(
    "split", build_reduce_scatter, classes=split_classes, symbolic=True, follows=False
)
ALGORITHMS = (
    Algorithm("doubling", build_doubling, classes=doubling_classes, symbolic=True, follows=False),
    Algorithm("split", build_split, classes=split_classes, symbolic=True, follows=False),
)
