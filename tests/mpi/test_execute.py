"""Plans on real buffers: every kind of step, memory used again, tags apart."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine import bound_plan as ways
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.schedule import Schedule
from closeranks.errors import PlanError, UsageError
from tests.collectives.shape.ring import ring
from tests.mpi.ground import bind, opened, rounds, run, start, toy


@pytest.fixture
def alone() -> MPI.Intracomm:
    """A communicator of this rank: what fails here concerns nobody else."""
    return MPI.COMM_SELF


Steps = Generator[None, None, None]


def vector(n: int, rank: int, dtype: str = "f4") -> np.ndarray:
    return (np.arange(n) % 11 + rank).astype(dtype)


def total(n: int, size: int, dtype: str = "f4") -> np.ndarray:
    return sum((vector(n, rank, dtype) for rank in range(1, size)), vector(n, 0, dtype))


def test_ring(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        for n, dtype in product([0, 1, 3, 64, 10_000], ["f4", "i8", "u1", "c16"]):
            data, output = vector(n, comm.rank, dtype), np.zeros(n, dtype)
            bound = bind(ring(comm.size, n), world, data, output)
            for _ in range(3):
                output[:] = 0
                run(bound)
                np.testing.assert_array_equal(output, total(n, comm.size, dtype))
            np.testing.assert_array_equal(data, vector(n, comm.rank, dtype))


def test_large_messages(comm: MPI.Intracomm) -> None:
    n = 1 << 21
    with opened(comm) as world:
        output = np.zeros(n, "f4")
        run(bind(ring(comm.size, n), world, vector(n, comm.rank), output))
        np.testing.assert_array_equal(output, total(n, comm.size))


def test_in_place_drops_the_copy(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        data = vector(12, comm.rank)
        bound = bind(ring(comm.size, 12), world, data, data)
        assert bound.ways[0] == ways.DROPPED
        run(bound)
        np.testing.assert_array_equal(data, total(12, comm.size))
        bound.attach(vector(12, comm.rank).view(np.uint8), data.view(np.uint8))
        assert bound.ways[0] == ways.COPY, "other memory, so there is something to copy"


def test_other_memory_between_executions(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound = bind(ring(comm.size, 9), world, vector(9, 0), np.zeros(9, "f4"))
        run(bound)
        for _ in range(2):
            data, output = vector(9, comm.rank), np.zeros(9, "f4")
            bound.attach(data.view(np.uint8), output.view(np.uint8))
            run(bound)
            np.testing.assert_array_equal(output, total(9, comm.size))


def test_memory_is_not_changed_under_an_execution(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        data, output = vector(9, comm.rank), np.zeros(9, "f4")
        events = [False]

        def build(out: Schedule, _: Problem) -> Steps:
            out.event(0)
            yield

        bound = bind(toy(comm.size, build), world, data, output, events=[lambda: events[0]])
        execution = start(bound)
        with pytest.raises(UsageError, match="still running"):
            bound.attach(None, None)
        events[0] = True
        engine().wait(execution)


def test_too_small_a_buffer_is_refused(comm: MPI.Intracomm) -> None:
    with opened(comm) as world, pytest.raises(UsageError, match="output of 8 bytes, needs 36"):
        bind(ring(comm.size, 9), world, vector(9, 0), np.zeros(2, "f4"))


def strided(out: Schedule, problem: Problem) -> Steps:
    """Send every other pair to the right, take the left's into gaps, add, copy."""
    size, me = problem.size, out.rank
    comb = Block(INPUT, 0, 2, 3, 4)  # items 0 1 4 5 8 9
    gaps = Block(OUTPUT, 2, 2, 3, 4)  # items 2 3 6 7 10 11
    room = out.scratch(12)
    sent = out.send((me + 1) % size, comb, 0) if size > 1 else -1
    got = out.receive((me - 1) % size, gaps, 0) if size > 1 else out.copy(comb, gaps)
    copied = out.copy(comb, Block(room, 0, 6))  # packs
    spread = out.copy(Block(room, 0, 6), Block(OUTPUT, 0, 2, 3, 4), (copied, sent))
    out.reduce(Block(OUTPUT, 0, 2, 3, 4), gaps, (got, spread))
    yield


def test_strided_blocks(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        data = np.arange(12, dtype="f4") + 100 * comm.rank
        output = np.full(12, -1, "f4")
        bound = bind(toy(comm.size, strided, 12), world, data, output)
        for _ in range(2):
            output[:] = -1
            run(bound)
            left = np.arange(12, dtype="f4") + 100 * ((comm.rank - 1) % comm.size)
            taken = [0, 1, 4, 5, 8, 9]
            np.testing.assert_array_equal(output[taken], data[taken])
            np.testing.assert_array_equal(output[[2, 3, 6, 7, 10, 11]], (left + data)[taken])


def test_signals_carry_nothing(comm: MPI.Intracomm) -> None:
    def build(out: Schedule, problem: Problem) -> Steps:
        for peer in range(problem.size):
            if peer != out.rank:
                out.send(peer, Block(INPUT, 0, 0), empty=True)
                out.receive(peer, Block(OUTPUT, 0, 0), empty=True)
        yield

    with opened(comm) as world:
        plan = toy(comm.size, build)
        for _ in range(3):
            run(bind(plan, world, vector(4, 0), np.zeros(4, "f4")))


def test_ready_steps_start_in_the_order_of_their_numbers(comm: MPI.Intracomm) -> None:
    order: list[int] = []

    def seen(number: int) -> bool:
        order.append(number)
        return True

    events = [partial(seen, number) for number in range(5)]

    def build(out: Schedule, _: Problem) -> Steps:
        last = out.event(4)
        for number in (3, 1, 2):
            out.event(number, (last,))
        out.event(0)
        yield

    with opened(comm) as world:
        run(bind(toy(comm.size, build), world, vector(4, 0), np.zeros(4, "f4"), events=events))
    assert order == [4, 0, 3, 1, 2]


def test_more_in_flight_than_the_window_never_take_each_others_messages(
    comm: MPI.Intracomm,
) -> None:
    with opened(comm) as world:
        world.window = 3
        plan = ring(comm.size, 5)
        flights = []
        for number in range(10):
            data, output = vector(5, comm.rank) + number, np.zeros(5, "f4")
            flights.append((start(bind(plan, world, data, output)), output))
        assert [flight.identity.sequence for flight, _ in flights] == list(range(10))
        for number, (flight, output) in reversed(list(enumerate(flights))):
            engine().wait(flight)
            np.testing.assert_array_equal(output, total(5, comm.size) + comm.size * number)


def test_the_tag_follows_from_sequence_and_slot(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        assert world.window >= 256
        highest = world.first_tag(world.window - 1) + 2**20 - 1
        bound = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        assert isinstance(bound, int)
        assert highest <= bound
        assert world.first_tag(world.window) == world.first_tag(0)
        tags = {world.first_tag(sequence) for sequence in range(world.window)}
        assert len(tags) == world.window


def test_a_register_above_its_bound_is_an_error(alone: MPI.Intracomm) -> None:
    def build(out: Schedule, _: Problem) -> Steps:
        register = out.register(2)
        out.apply("numbers", [Block(out.constant(np.array([3])), 0, 1)], sets=[register])
        yield

    with opened(alone) as world:
        execution = start(bind(toy(1, build), world, vector(4, 0), np.zeros(4, "f4")))
        assert isinstance(execution.error, PlanError)
        assert "at most 2" in str(execution.error)


def test_a_failed_reduction_ends_the_execution_and_its_world(alone: MPI.Intracomm) -> None:
    def explode(*_: np.ndarray) -> None:
        raise ZeroDivisionError("in the user's op")

    def build(out: Schedule, _: Problem) -> Steps:
        out.receive(0, Block(OUTPUT, 0, 4), 9)  # nobody sends it
        out.reduce(Block(INPUT, 0, 2), Block(INPUT, 2, 2))
        yield

    with opened(alone) as world:
        data, output = vector(4, 0), np.zeros(4, "f4")
        execution = start(bind(toy(1, build), world, data, output, reducer=explode))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                engine().wait(execution)
        assert world.revoked
        rounds(100)
        assert execution.drained, "the receive was cancelled, the buffers are free"


def test_overflow_warns_nobody(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        data, output = np.full(8, 3e38, "f4"), np.zeros(8, "f4")
        run(bind(ring(comm.size, 8), world, data, output))
        assert np.isinf(output).all() or comm.size == 1
