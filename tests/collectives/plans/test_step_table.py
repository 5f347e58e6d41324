"""A table says what the steps say, in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import (
    Apply,
    Kind,
    Leaf,
    Schedule,
    Step,
    StepTable,
    lower,
)
from closeranks.comms.topology.topology import Topology


def written() -> tuple[Schedule, list[Step]]:
    """One step of every kind."""
    out = Schedule(1, 8, 8)
    length = out.register(5)
    room = out.scratch(length, 8)
    whole = Block(OUTPUT, 0, 8)
    copied = out.copy(Block(INPUT, 0, 2, 2, 4), Block(OUTPUT, 0, 4))
    sent = out.send(0, whole, 3, (copied,))
    got = out.receive(2, Block(room, 0, length), 4, optional=True)
    out.reduce(Block(INPUT, 0, 8), whole, (copied, sent))
    out.apply("offsets", [Block(room, 0, 2)], [whole], [length], (copied, got), need=1)
    out.event(6, (got,))
    leaf = Leaf("allreduce", "node", (0, 1), "ring_allreduce")
    out.native(leaf, Block(INPUT, 0, 8), whole)
    return out, out.drain()


def blocks_of(table: StepTable, number: int, column: int) -> Block:
    return Block(*table.rows[number, column : column + 5].tolist())


def test_every_column_is_what_the_step_says() -> None:
    script, steps = written()
    table = lower(script, steps)
    assert table.rank == 1
    assert table.rows.shape == (len(steps), columns.WIDTH)
    assert table.rows.dtype == np.int64
    assert table.buffers.tolist() == [[8, 0], [8, 0], [~0, 8]]
    assert table.registers.tolist() == [5]
    for number, step in enumerate(steps):
        row = table.rows[number]
        assert row[columns.KIND] == step.kind
        assert row[columns.PEER] == step.peer
        assert row[columns.SLOT] == step.slot
        assert row[columns.NEED] == step.need
        first, n_after = row[columns.AFTER], row[columns.N_AFTER]
        assert tuple(table.after[first : first + n_after]) == step.after
        if step.block is not None:
            assert blocks_of(table, number, columns.BLOCK) == step.block
        else:
            assert row[columns.BLOCK] == -1
        if isinstance(step.source, Block):
            assert blocks_of(table, number, columns.SOURCE) == step.source
        else:
            assert row[columns.SOURCE] == -1
        if step.action is not None:
            assert table.actions[row[columns.ACTION]] is step.action
        else:
            assert row[columns.ACTION] == -1


def test_flags() -> None:
    table = lower(*written())
    copy, send, receive, reduce, apply, event, native = table.rows[:, columns.FLAGS].tolist()
    assert copy == columns.STRIDED
    assert receive == columns.OPTIONAL | columns.SYMBOLIC
    assert apply == columns.SYMBOLIC, "its operand lies in a buffer that a register sizes"
    assert (send, reduce, event, native) == (0, 0, 0, 0)
    assert table.has_leaves


def test_operands_and_registers_of_an_apply() -> None:
    script, steps = written()
    table = lower(script, steps)
    row = table.rows[4]
    first = row[columns.OPERANDS]
    reads, writes = row[columns.N_READS], row[columns.N_WRITES]
    found = [Block(*operand) for operand in table.operands[first : first + reads + writes].tolist()]
    action = steps[4].action
    assert isinstance(action, Apply)
    assert (*found[:reads],) == steps[4].source
    assert (*found[reads:],) == action.writes
    assert row[columns.N_SETS] == 1
    assert table.sets[row[columns.SETS]] == 0


def test_successors_are_the_edges_turned_around() -> None:
    script, steps = written()
    following = lower(script, steps).successors_of()
    for number, step in enumerate(steps):
        for earlier in step.after:
            assert number in following[earlier]
    assert sum(map(len, following)) == sum(len(step.after) for step in steps)


def test_nothing_to_do_is_a_table_too() -> None:
    table = lower(Schedule(0, 0, 0), [])
    assert len(table) == 0
    assert table.successors_of() == []
    assert not table.has_leaves


def test_a_table_is_not_changed_by_accident() -> None:
    table = lower(*written())
    with pytest.raises(ValueError, match="read-only"):
        table.rows[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        table.after[0] = 1


@pytest.mark.parametrize("operation", sorted(ALGORITHMS))
def test_every_algorithm_lowers(operation: str) -> None:
    size = 6
    topology = Topology.regular(node=2, rank=3)
    counts: np.ndarray | None = None
    if operation == "alltoallv":
        counts = np.arange(size * size).reshape(size, size) % 5
    elif operation.endswith("v") or operation == "reduce_scatter":
        counts = np.arange(size) % 4
    problem = Problem(operation, topology, count=10, counts=counts)
    for algorithm in ALGORITHMS[operation]:
        if algorithm.objection(problem):
            continue
        plan = Plan(problem, algorithm)
        for rank in range(size):
            script, steps = plan.script(rank)
            table = lower(script, steps)
            assert table.rows[:, columns.KIND].tolist() == [int(step.kind) for step in steps]
            assert all(step.slot < 2**20 for step in steps)
            assert (table.rows[:, columns.KIND] <= Kind.SHARED).all()
