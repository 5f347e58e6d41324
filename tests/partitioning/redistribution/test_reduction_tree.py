"""Terms are added inside groups first: bytes, shares of work, order, scale."""

from __future__ import annotations

import time
from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Broadcast, Conversion, Layout, Mesh, Partial, Split, conversion
from closeranks.partitioning.redistribution import part_moves
from closeranks.partitioning.redistribution.distribution_tree import GroupedRanks, Machine
from closeranks.partitioning.redistribution.part_moves import Move, Reduction
from closeranks.partitioning.redistribution.rank_work import _add_around
from closeranks.partitioning.redistribution.reduction_tree import holder, role
from tests.shares import SEED


def from_partial(topology: Topology, target: Any, shape: tuple[int, ...], order: Any) -> Conversion:
    """Make a conversion of terms on one axis."""
    mesh = Mesh({"x": topology.size}, order=order)
    source, wanted = (Layout(shape, [how], mesh=mesh) for how in (Partial(), target))
    return conversion(source, wanted, topology=topology)


def machine(rng: np.random.Generator) -> Topology:
    """Make up a machine of three levels, regular or not."""
    if rng.random() < 0.3:
        sizes = rng.integers(1, 4, 3).tolist()
        return Topology.regular(**dict(zip(("site", "node", "rank"), sizes, strict=True)))
    size = int(rng.integers(2, 17))
    node = rng.integers(0, max(2, size // 2), size)
    return Topology.from_groups(("site", "node", "rank"), [node % 3, node, list(range(size))])


@pytest.mark.share(3)
@pytest.mark.parametrize("number", range(30))
def test_bytes_of_any_machine(number: int) -> None:
    rng = np.random.default_rng([0 if SEED == "all" else int(SEED), number])
    topology = machine(rng)
    n, order = topology.size, rng.permutation(topology.size)
    whole = 240 * 7 * 8
    for target, times in ((Split(0), 1), (Split(1), 1), (Broadcast(), 2)):
        made = from_partial(topology, target, (240, 7), order)
        assert made.total_bytes == times * whole * (n - 1)
        assert sum(map(made.received, range(n))) == made.total_bytes
        for row in topology.groups:
            for group in set(row.tolist()):
                inside = [rank for rank in range(n) if row[rank] == group]
                wanted = sum(prod(made.target.local_shape(rank)) for rank in inside) * 8
                leaving = sum(
                    8 * prod(stop - start for start, stop in move.box)
                    for rank in inside
                    for move in made.part(rank).sends
                    if move.stage <= 0 and row[move.receiver] != group
                )
                if times == 1:  # sums of all that others want, and of nothing else
                    assert leaving == (whole - wanted if len(inside) < n else 0)
                assert leaving <= whole


def test_ranks_of_a_node_share_the_work() -> None:
    made = from_partial(Topology.regular(node=4, rank=4), Split(0), (1600, 2), None)
    across = Counter(
        move.sender for rank in range(16) for move in made.part(rank).receives if move.stage == 0
    )
    assert set(across.values()) == {3}
    assert len(across) == 16
    assert made.bytes_per_level["node"] == made.group_bytes_per_level["node"] / 4


def test_ranks_of_a_node_share_the_work_for_one_that_wants_all() -> None:
    topology = Topology.regular(node=2, rank=4)
    source = Layout((8, 1024), [Partial()], mesh=Mesh({"x": 8}))
    target = Layout((8, 1024), [Partial()], mesh=Mesh({"x": 8}, order=[1, 0, *range(2, 8)]))
    made = conversion(source, target, topology=topology)
    assert [made.received(rank) >= 4 << 16 for rank in range(8)] == [False, True, *[False] * 6]
    across = {rank: m for rank in range(8) for m in made.part(rank).sends if m.stage == 0}
    assert {rank: m.receiver for rank, m in across.items()} == dict.fromkeys(range(4, 8), 1)
    assert made.bytes_per_level["node"] == 2 << 13


def test_small_parts_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology.regular(node=2, rank=4)
    source = Layout((8, 8), [Partial()], mesh=Mesh({"x": 8}))
    target = Layout((8, 8), [Partial()], mesh=Mesh({"x": 8}, order=[1, 0, *range(2, 8)]))
    assert sum(isinstance(s, Reduction) for s in conversion(source, target).steps) == 1
    for least, count in ((part_moves._LEAST_SHARE, 1), (1, 4)):
        monkeypatch.setattr(part_moves, "_LEAST_SHARE", least)
        steps = conversion(source, target, topology=topology).steps
        assert len({s.box for s in steps if isinstance(s, Move)}) == count


def test_the_order_is_that_of_coordinates_inside_groups_whoever_adds() -> None:
    topology = Topology.from_groups(("node", "rank"), [[0, 1, 0, 2, 1, 2, 0], list(range(7))])
    order = [3, 1, 6, 0, 5, 4, 2]
    made = from_partial(topology, Broadcast(), (70,), order)
    words: dict[tuple[int, Any], str] = {}
    for step in made.steps:
        if isinstance(step, Reduction):
            words[step.rank, step.box] = "({})".format(
                "+".join(words.get((sender, step.box), str(sender)) for sender in step.senders)
            )
    final = {
        words[step.rank, step.box]
        for step in made.steps
        if isinstance(step, Reduction) and not step.goes_on
    }
    assert final == {"((3+5)+(1+4)+(6+0+2))"}


def test_terms_with_copies_come_from_few_groups() -> None:
    machine = Machine.of(Topology.regular(node=3, rank=4))
    terms = [[0, 4], [1, 5], [2, 6], [3, 7]]  # two nodes have them all
    for number in range(8):
        assert [holder(ranks, 2, machine, number) for ranks in terms] == [0, 1, 2, 3]
        nodes = {holder(ranks, 9, machine, number) // 4 for ranks in terms}
        assert len(nodes) == 1
    assert {holder([0, 1, 4, 5], 9, machine, number) for number in range(4)} == {0, 1, 4, 5}


def test_a_reducer_without_a_term() -> None:
    machine = Machine.of(Topology.regular(node=2, rank=3))
    held = GroupedRanks([1, 2], machine)
    assert role(0, 0, held, machine, 0).additions == [(1, (1, 2), (False, False))]
    assert [role(rank, 0, held, machine, 0).receiver for rank in (1, 2)] == [0, 0]
    [addition] = role(4, 4, held, machine, 0).additions
    assert addition == (0, (1,), (True,))


def test_a_part_of_a_sum_on_1024_ranks_takes_no_longer_than_200_ms() -> None:
    topology = Topology.regular(site=4, node=32, rank=8)
    line, square = Mesh({"x": 1024}), Mesh({"x": 32, "y": 32})
    pairs: list[tuple[Mesh, list[Any], list[Any]]] = [
        (line, [Partial()], [Split(0)]),
        (line, [Partial()], [Broadcast()]),
        (square, [Partial(), Broadcast()], [Split(0), Broadcast()]),
    ]
    for mesh, given, taken in pairs:
        source, target = (Layout((1 << 16, 64), how, mesh=mesh) for how in (given, taken))
        began = time.process_time()
        made = conversion(source, target, topology=topology)
        received = made.received(517)
        assert time.process_time() - began < 0.2
        assert received > 0


@pytest.mark.parametrize("own", range(4))
def test_a_sum_that_lies_in_the_target_keeps_its_place(own: int) -> None:
    rng = np.random.default_rng(own)
    terms = [rng.normal(size=50) * 10.0**power for power in (7, -9, 3, 0)]
    inputs = [None if place == own else term.copy() for place, term in enumerate(terms)]
    target = terms[own].copy()
    _add_around("sum", target, inputs, own)
    assert (target == ((terms[0] + terms[1]) + terms[2]) + terms[3]).all()
