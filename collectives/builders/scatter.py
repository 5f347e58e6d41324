"""Scatter, of equal blocks and of counts that only the root knows.

Flat, and over rails as the mirror of the hierarchical gather: the root gives
each port of its node the data of its rail; every rail scatters down a binomial
tree; gateways pass blocks on inside their nodes.  With blocks of any sizes it
is the mirror of the hierarchical gatherv.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from closeranks.collectives.builders.gather import (
    FORWARDED,
    UNKNOWN,
    WIDTH,
    Branch,
    RailRegisters,
    beyond,
    by_rank,
    linear_gather_classes,
    wrapped,
)
from closeranks.collectives.builders.patterns.over_vector import turned
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    depth,
    subtrees,
)
from closeranks.collectives.builders.patterns.tier_classes import linear_classes, scatter_classes
from closeranks.collectives.builders.patterns.trees import (
    binomial_scatter,
    children,
    linear_scatter,
)
from closeranks.collectives.builders.patterns.two_tiers import NodeTiers, folds, nodes_of, pieces
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import (
    Algorithm,
    BlockOf,
    Stage,
    Window,
    Writing,
    bring,
    seats,
)
from closeranks.collectives.plans.port_tree import flat
from closeranks.collectives.plans.rank_classes import Ints, by_rounds
from closeranks.collectives.plans.schedule import After, Schedule


def _binomial(out: Schedule, problem: Problem) -> Writing:
    size, root, count = problem.size, problem.root, problem.count
    members, me = turned(problem, out.rank)
    target = Block(OUTPUT, 0, count)
    end = max((end for _, end in children(me, size)), default=me + 1)
    if me and end == me + 1:
        return (yield from binomial_scatter(out, members, me, lambda *_: (target,), (), 0))
    work = out.scratch((end - me) * count) if me else INPUT

    def pieces(low: int, high: int) -> list[Block]:
        if me:
            return [Block(work, (low - me) * count, (high - low) * count)]
        return wrapped(INPUT, size, root, count, low, high)

    got = yield from binomial_scatter(out, members, me, pieces, (), 0)
    return Stage(bring(out, pieces(me, me + 1)[0], target, got.done), got.busy)


def _binomial_classes(problem: Problem) -> Ints:
    members = np.roll(np.arange(problem.size), -problem.root)
    sizes = subtrees(np.full(problem.size, problem.count))
    rounds = binomial_down_rounds(problem.size, sizes)
    return by_rounds(problem.topology, members, rounds, (depth(problem.size),))


def _linear(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    root, source = members.index(problem.root), _operands(out, problem)
    count = problem.count if problem.counts is None else int(problem.counts[out.rank])
    target = Block(OUTPUT, 0, count)
    return linear_scatter(out, members, me, root, lambda j: source(members[j]), target, (), 0)


def _operands(out: Schedule, problem: Problem) -> BlockOf:
    """Blocks by rank; only the root asks for them."""
    if problem.counts is None or out.rank != problem.root:
        return even(INPUT, problem.count)
    return packed(INPUT, problem.counts)


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("linear", _linear, classes=linear_gather_classes),
)

ALGORITHMS_V = (Algorithm("linear", _linear, classes=linear_gather_classes),)


def hierarchical_scatter(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a scatter of equal blocks.

    Parameters
    ----------
    out : Schedule
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


def _give(out: Schedule, nodes: NodeTiers, home: int, count: int) -> tuple[int, After]:
    """On the root: give to its node's ranks and ports; pack for the own rail."""
    out.copy(Block(INPUT, out.rank * count, count), Block(OUTPUT, 0, count))
    peers = nodes.members[home]
    kept = -1
    packed: After = ()
    for rail in range(nodes.rails):
        order = Branch(nodes, home, rail, count).order
        found = pieces(folds(order), INPUT, count)
        if peers[rail] != out.rank and len(found) == 1:
            out.send(peers[rail], found[0][1], 2)
            continue
        buffer = out.scratch(len(order) * count)
        copied = tuple(
            out.copy(block, Block(buffer, at * count, block.items)) for at, block in found
        )
        if peers[rail] == out.rank:
            kept, packed = buffer, copied
        else:
            out.send(peers[rail], Block(buffer, 0, len(order) * count), 2, copied)
    for peer in peers:
        if peer != out.rank:
            out.send(peer, Block(INPUT, peer * count, count))
    return kept, packed


HIERARCHICAL = (
    Algorithm("hierarchical", hierarchical_scatter, refuses=flat, classes=scatter_classes),
)


def hierarchical_scatterv(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a scatter of blocks of any sizes.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``scatterv``.
    """
    nodes, root = nodes_of(problem.topology), problem.root
    home, node = int(nodes.node[root]), int(nodes.node[out.rank])
    me = int(nodes.local[out.rank])
    own = Block(OUTPUT, 0, out.buffers[OUTPUT].items)
    if out.rank == root:
        yield from _give_v(out, problem, nodes, home)
    elif node == home:
        out.receive(root, own, 1)
        if me < nodes.rails:
            yield from _forward(out, problem, nodes, home, me)
    elif me >= nodes.rails:
        out.receive(nodes.members[node][me % nodes.rails], own, empty=True)
    else:
        _hand_over(out, problem, nodes, home, me)


def _hand_over(out: Schedule, problem: Problem, nodes: NodeTiers, home: int, me: int) -> None:
    """On a gateway elsewhere: take the own block, pass on those behind it."""
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
    out: Schedule, problem: Problem, nodes: NodeTiers, home: int, me: int
) -> Generator[None, None, None]:
    """On a port of the root's node: pass on the blocks of the root."""
    served = beyond(nodes, home, me)
    layout = RailRegisters(out, [rank for rank, _, _ in served], problem, problem.root)
    coming = Window(WIDTH, layout.ready)
    for index, (_, port, place) in enumerate(served):
        block = layout.block(index)
        came = out.receive(problem.root, block, FORWARDED + index, coming.credit())
        coming.admit(came)
        out.send(port, block, place, (came,))
        yield


def _give_v(
    out: Schedule, problem: Problem, nodes: NodeTiers, home: int
) -> Generator[None, None, None]:
    """On the root: tell the ports the counts, send every block on its way."""
    assert problem.counts is not None
    blocks = by_rank(INPUT, problem.counts)
    out.copy(blocks[out.rank], Block(OUTPUT, 0, blocks[out.rank].count))
    peers = nodes.members[home]
    for peer in peers:
        if peer != out.rank:
            out.send(peer, blocks[peer], 1)
    rails = [beyond(nodes, home, rail) for rail in range(nodes.rails)]
    for rail, served in enumerate(rails):
        if peers[rail] != out.rank:
            table = out.constant(problem.counts[[rank for rank, _, _ in served]])
            out.send(peers[rail], Block(table, 0, len(served)))
    going = [Window(WIDTH) for _ in rails]
    for index in range(max(map(len, rails))):
        for rail, served in enumerate(rails):
            if index < len(served):
                rank, port, place = served[index]
                at_port = peers[rail] == out.rank
                peer, slot = (port, place) if at_port else (peers[rail], FORWARDED + index)
                after = going[rail].credit()
                going[rail].admit(out.send(peer, blocks[rank], slot, after, empty=True))
        yield


HIERARCHICAL_V = (
    Algorithm(
        "hierarchical", hierarchical_scatterv, refuses=flat, classes=linear_classes, symbolic=True
    ),
)
