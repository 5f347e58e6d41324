"""simulate finds what is wrong with a plan: every kind of fault, planted once."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest

from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Builder, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms.topology.topology import Topology
from closeranks.errors import PlanError, UsageError

Steps = Generator[None, None, None]


def run(build: Builder, *, count: int = 4, size: int = 2, seed: int = 0) -> list[np.ndarray]:
    """Simulate an all-reduce written by ``build``."""
    topology = Topology.regular(node=size, rank=1)
    plan = Plan(Problem("allreduce", topology, count=count), Algorithm("planted", build))
    return simulate(plan, [np.arange(count) + rank for rank in range(size)], seed=seed)


def swap(out: Schedule, problem: Problem) -> Steps:
    """Send the input to the other rank, receive its input."""
    out.send(1 - out.rank, Block(INPUT, 0, problem.count))
    out.receive(1 - out.rank, Block(OUTPUT, 0, problem.count))
    yield


def test_a_right_plan_gives_its_values() -> None:
    first, second = run(swap)
    assert first.tolist() == [1, 2, 3, 4]
    assert second.tolist() == [0, 1, 2, 3]


def test_deadlock_names_the_steps_that_wait() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        got = out.receive(1 - out.rank, Block(OUTPUT, 0, problem.count))
        out.send(1 - out.rank, Block(INPUT, 0, problem.count), after=(got,))
        yield

    with pytest.raises(PlanError, match=r"deadlock: 4 steps wait: rank 0 step 0 \(receive"):
        run(build)


def test_a_write_under_a_send_is_a_race() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        block = Block(OUTPUT, 0, problem.count)
        copied = out.copy(Block(INPUT, 0, problem.count), block)
        work = Block(out.scratch(problem.count), 0, problem.count)
        out.send(1 - out.rank, block, after=(copied,))
        got = out.receive(1 - out.rank, work)
        out.reduce(work, block, after=(got, copied))
        yield

    with pytest.raises(PlanError, match=r"race: step 1 \(send .* and step 3 \(reduce"):
        run(build)


def test_a_read_before_the_message_is_a_race() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        work = Block(out.scratch(problem.count), 0, problem.count)
        out.send(1 - out.rank, Block(INPUT, 0, problem.count))
        out.receive(1 - out.rank, work)
        out.copy(work, Block(OUTPUT, 0, problem.count))
        yield

    for seed in range(4):
        with pytest.raises(PlanError, match="race"):
            run(build, seed=seed)


def test_reading_what_nobody_wrote() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        out.copy(Block(out.scratch(problem.count), 0, problem.count), Block(OUTPUT, 0, 4))
        yield

    with pytest.raises(PlanError, match="that nobody wrote"):
        run(build)


def test_two_messages_that_may_change_places_are_ambiguous() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        peer = 1 - out.rank
        work = Block(out.scratch(2), 0, 2)
        first = out.copy(Block(INPUT, 0, 2), work)
        out.send(peer, work, after=(first,))
        out.send(peer, Block(INPUT, 2, 2))
        out.receive(peer, Block(OUTPUT, 0, 2))
        out.receive(peer, Block(OUTPUT, 2, 2))
        yield

    with pytest.raises(PlanError, match="ambiguous messages: step 1"):
        run(build)


def test_a_message_of_another_size() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        out.send(1 - out.rank, Block(INPUT, 0, problem.count - out.rank))
        out.receive(1 - out.rank, Block(OUTPUT, 0, problem.count))
        yield

    with pytest.raises(PlanError, match="a message of 3 items where 4 are expected"):
        run(build)


def test_a_block_outside_its_buffer() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        out.copy(Block(INPUT, 0, problem.count), Block(OUTPUT, 1, problem.count))
        yield

    with pytest.raises(PlanError, match="leaves its 4 items"):
        run(build)


def test_a_message_above_its_bound() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        size = out.register(at_most=3)
        out.send(1 - out.rank, Block(INPUT, 0, problem.count))
        out.receive(1 - out.rank, Block(OUTPUT, 0, size))
        yield

    with pytest.raises(PlanError, match="4 items, at most 3"):
        run(build)


def test_a_register_read_before_it_is_set() -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        out.copy(Block(INPUT, 0, out.register(at_most=4)), Block(OUTPUT, 0, 4))
        yield

    with pytest.raises(PlanError, match="reads register 0 unset"):
        run(build)


def test_early_stop_promises_no_single_step() -> None:
    """What needs one of two receives may not overwrite what the other writes."""

    def build(out: Schedule, problem: Problem) -> Steps:
        size = problem.size
        work = out.scratch(size * 4)
        got = []
        for peer in range(size):
            if peer != out.rank:
                out.send(peer, Block(INPUT, 0, 4))
                got.append(out.receive(peer, Block(work, 4 * peer, 4), optional=True))
        other = (out.rank + 1) % size
        reads = [Block(work, 4 * peer, 4) for peer in range(size) if peer != out.rank]
        total = (Block(OUTPUT, 0, 4),)
        enough = out.apply("sum_arrived", reads, total, after=tuple(got), need=1)
        out.copy(Block(INPUT, 0, 4), Block(work, 4 * other, 4), after=(enough,))
        yield

    with pytest.raises(PlanError, match=r"race|that nobody wrote"):
        run(build, size=3)


def test_wrong_inputs_are_named() -> None:
    topology = Topology.regular(rank=2)
    plan = Plan(Problem("allreduce", topology, count=4), Algorithm("planted", swap))
    with pytest.raises(PlanError, match=r"rank 1: input of shape \(3,\), not \(4,\)"):
        simulate(plan, [np.zeros(4), np.zeros(3)])
    with pytest.raises(PlanError, match="1 inputs for 2 ranks"):
        simulate(plan, [np.zeros(4)])
    good = [np.zeros(4), np.zeros(4)]
    for wrong in (5, None, object()):
        with pytest.raises(UsageError, match="plan is"):
            simulate(wrong, good)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="inputs is"):
            simulate(plan, wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="op is"):
            simulate(plan, good, op=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed is"):
        simulate(plan, good, seed=[1])  # type: ignore[arg-type]
