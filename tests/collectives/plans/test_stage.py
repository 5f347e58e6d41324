"""The tools that stages share, and stages over parts of a group."""

from __future__ import annotations

import random
from collections.abc import Generator

import numpy as np
import pytest

from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
)
from closeranks.collectives.builders.patterns.recursive_doubling import fold
from closeranks.collectives.builders.patterns.ring import ring_allgather
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block, cut, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import (
    Algorithm,
    Plan,
    Stage,
    Window,
    bring,
    passed,
    seats,
)
from closeranks.collectives.plans.schedule import NOTHING, Kind, Schedule
from closeranks.comms.topology.topology import Topology


def test_a_window_lets_so_many_steps_fly() -> None:
    window = Window(2, (7,))
    assert window.tail() == (7,)
    gateways = []
    for step in (10, NOTHING, 11, 12):
        gateways.append(window.credit())
        window.admit(step)
    assert gateways == [(7,), (7,), (7,), (10,)]
    assert window.credit() == (11,)
    assert window.tail() == (11, 12)


def test_a_step_that_was_not_written_hands_on_what_it_waited_for() -> None:
    assert passed(3, (1, 2)) == (3,)
    assert passed(NOTHING, (1, 2)) == (1, 2)
    out = Schedule(0, 4, 4)
    block = Block(INPUT, 0, 4)
    assert bring(out, block, block, (5,)) == (5,)
    assert bring(out, block, Block(OUTPUT, 0, 4)) == (0,)
    assert bring(out, Block(INPUT, 0, 0), Block(OUTPUT, 0, 0), (5,)) == (5,)


def test_over_is_done_and_not_busy() -> None:
    assert Stage((1,), (2, 3)).over == (1, 2, 3)


def test_seats_follow_nodes_only_where_operands_commute() -> None:
    topology = Topology.from_groups(("node", "rank"), [[0, 1, 0, 1], [0, 1, 2, 3]])
    assert seats(Problem("allreduce", topology), 1) == ([0, 2, 1, 3], 2)
    assert seats(Problem("allreduce", topology, commutative=False), 1) == ([0, 1, 2, 3], 1)
    assert seats(Problem("allgather", topology, commutative=False), 1) == ([0, 2, 1, 3], 2)


def test_chunks() -> None:
    assert [cut(Block(3, 10, 7), 3)(j)[:3] for j in range(3)] == [
        (3, 10, 2),
        (3, 12, 2),
        (3, 14, 3),
    ]
    assert cut(Block(3, 10, 7), 3).largest == 3
    assert cut(Block(3, 10, 7), 3).span(1, 3)[:3] == (3, 12, 5)
    assert even(1, 4, 2).span(1, 3)[:3] == (1, 6, 8)
    given = packed(0, [2, 0, 5])
    assert [given(j)[:3] for j in range(3)] == [(0, 0, 2), (0, 2, 0), (0, 2, 5)]
    assert given.largest == 5
    assert type(given(2).start) is int


@pytest.mark.parametrize("size", range(1, 40))
def test_a_fold_keeps_the_order(size: int) -> None:
    folded = fold(size)
    assert folded.places <= size < 2 * folded.places
    seated = [me for me in range(size) if folded.place(me) >= 0]
    assert [folded.place(me) for me in seated] == list(range(folded.places))
    assert [folded.member(place) for place in range(folded.places)] == seated
    edges = [folded.edge(place) for place in range(folded.places + 1)]
    assert edges[0] == 0
    assert edges[-1] == size
    for place, me in enumerate(seated):
        assert edges[place] <= me < edges[place + 1]


@pytest.mark.parametrize(("size", "owners"), [(5, [0, 1]), (4, [1, 3]), (3, [2]), (40, [0, 7, 39])])
def test_a_few_owners_sum_in_the_order_of_members(size: int, owners: list[int]) -> None:
    """Members in any order of ranks; then every owner's chunk goes to all."""
    members = random.Random(size).sample(range(size), size)

    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        me = members.index(out.rank)
        source = cut(Block(INPUT, 0, problem.count), len(owners))
        target = cut(Block(OUTPUT, 0, problem.count), len(owners))
        own = target(owners.index(me)) if me in owners else None
        stage = yield from direct_reduce_scatter(out, members, me, owners, source, own, (), 0)
        done = stage.done if own is not None else ()
        yield from direct_allgather(out, members, me, owners, target, done, 1, stage.over)

    count = 7
    problem = Problem("allreduce", Topology.regular(rank=size), count=count, commutative=False)
    inputs = [
        np.array([f"{rank}.{i} " for i in range(count)], dtype=object) for rank in range(size)
    ]
    wanted = ["".join(f"{rank}.{i} " for rank in members) for i in range(count)]
    for in_place in (False, True):
        found = simulate(
            Plan(problem, Algorithm("owners", build)),
            inputs,
            op=lambda a, b: a + b,
            seed=size,
            in_place=in_place,
        )
        assert all(result.tolist() == wanted for result in found)


def test_a_ring_keeps_few_messages_in_flight() -> None:
    """Each receive but the first four waits for the fourth before it."""
    out = Schedule(0, 0, 64)
    for _ in ring_allgather(out, range(64), 0, even(OUTPUT, 1), (), 0):
        continue
    receives = [(i, s) for i, s in enumerate(out.drain()) if s.kind.name == "RECEIVE"]
    numbers = [i for i, _ in receives]
    assert [s.after for _, s in receives[:4]] == [(), (), (), ()]
    assert [s.after for _, s in receives[4:]] == [(i,) for i in numbers[:-4]]


def test_a_chain_of_many_segments() -> None:
    """Slots take turns: so many segments on, the link is known to be free."""
    for size in (1, 2, 5):
        topology = Topology.regular(rank=size)
        problem = Problem("bcast", topology, count=37, root=size // 2, itemsize=128 << 10)
        plan = Plan(problem, find("bcast", "chain"))
        inputs = [np.arange(problem.input_items(rank)) for rank in range(size)]
        for in_place in (False, True):
            found = simulate(plan, inputs, seed=size, in_place=in_place)
            assert all(result.tolist() == list(range(37)) for result in found)
        sends = sum(step.kind == Kind.SEND for step in plan.steps(problem.root))
        assert sends == (37 if size > 1 else 0)
