"""Attempts where nobody dies, with any library: what they cost, keep and give back."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr


@contextmanager
def opened(comm: MPI.Intracomm) -> Iterator[cr.Communicator]:
    """A communicator that a test may ruin."""
    made = cr.init(comm)
    try:
        yield made
    finally:
        made.abandon()


def summed(comm: cr.Communicator) -> int:
    """Sum of seats and one."""
    taken = np.zeros(3, np.int64)
    comm.Allreduce(np.full(3, comm.seat + 1, np.int64), taken)
    return int(taken[1])


def attempted(comm: cr.Communicator, body: Callable[[], object], *, restore: bool = True) -> None:
    """Attempt something."""
    for attempt in comm.attempts(restore=restore):
        with attempt:
            body()


def test_deadlines_that_contradict_each_other_are_refused(comm: MPI.Intracomm) -> None:
    for given in ({"recovery_timeout_s": 1}, {"timeout_s": 0.2, "recovery_timeout_s": 0.2}):
        with pytest.raises(cr.UsageError, match="is noticed after"):
            cr.init(comm, **given)


def test_an_attempt_that_ends_well_is_the_only_one(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        seen = []
        for attempt in ours.attempts():
            with attempt:
                seen.append((attempt.number, attempt.world, attempt.lost, summed(ours)))
            assert attempt.agreed
        assert seen == [(1, ours.size, (), ours.size * (ours.size + 1) // 2)]
        assert ours.epoch == 0
        assert not ours.joined
        assert [ours.incarnation(seat) for seat in range(comm.size)] == [0] * comm.size
        with pytest.raises(cr.UsageError, match=f"seat is {comm.size}"):
            ours.incarnation(comm.size)


def test_who_agrees_is_not_kept_by_one_that_raises(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        raises = ours.rank == ours.size - 1

        def body() -> None:
            summed(ours)
            if raises:
                raise ValueError

        began = time.monotonic()
        with pytest.raises(ValueError if raises else cr.PeerError):
            attempted(ours, body)
        assert time.monotonic() - began < 10


def test_a_block_that_an_error_ends_keeps_nobody_waiting(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        raises = ours.rank == ours.size - 1
        began = time.monotonic()
        with pytest.raises(cr.UsageError if raises else cr.PeerError), ours.Split(0, 0) as row:
            row.incarnation(-1 if raises else 0)
        assert time.monotonic() - began < 10
        row.close()


def test_leaving_by_break_and_return_is_agreed_too(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        for attempt in ours.attempts():
            with attempt:
                found = summed(ours)
                break

        def returning() -> int:
            for attempt in ours.attempts():
                with attempt:
                    return summed(ours)
            return 0

        assert found == returning() == summed(ours)


@pytest.mark.parametrize("algorithm", ["auto", "native", "shared"])
@pytest.mark.parametrize("restore", [True, False])
def test_buffers_in_place_come_back(comm: MPI.Intracomm, algorithm: str, restore: bool) -> None:
    with opened(comm) as ours:
        if algorithm == "shared" and ours.size == 1:
            pytest.skip("one rank shares nothing")
        values = np.arange(100.0)
        for _ in range(30):  # until machine code serves such calls
            ours.Allreduce(MPI.IN_PLACE, np.ones(100), algorithm=algorithm)

        def twice() -> None:
            ours.Allreduce(MPI.IN_PLACE, values, algorithm=algorithm)
            ours.Allreduce(MPI.IN_PLACE, values, algorithm=algorithm)
            comm.Barrier()  # one that nobody gives up
            raise cr.PeerLate("mine", waited_s=1, limit_s=1)

        with pytest.raises(cr.PeerLate, match="mine"):
            attempted(ours, twice, restore=restore)
        times = 1 if restore else ours.alive[-1] + 1
        assert np.array_equal(values, np.arange(100.0) * times**2)


def _blocks(ours: cr.Communicator, values: np.ndarray) -> None:
    for first in range(0, 12, 4):
        ours.Allreduce(MPI.IN_PLACE, [values, 4, first, MPI.DOUBLE])


def _columns_and_rows(ours: cr.Communicator, values: np.ndarray) -> None:
    square = values[:9].reshape(3, 3)
    for part in (square[:, 0], square[0], square[:, 0], square[::2], square[:2]):
        ours.Allreduce(MPI.IN_PLACE, part)


def _derived_types(ours: cr.Communicator, values: np.ndarray) -> None:
    for apart in (ours.size, 2 * ours.size):
        kind = MPI.DOUBLE.Create_vector(2, 1, apart).Create_resized(0, 8).Commit()
        ours.Allgather(MPI.IN_PLACE, [values, 1, kind])
        kind.Free()


def _gathered(ours: cr.Communicator, values: np.ndarray) -> None:
    counts = [1] * ours.size
    for first in range(3):
        places = [first + 3 * rank for rank in range(ours.size)]
        ours.Allgatherv(MPI.IN_PLACE, [values, counts, places, MPI.DOUBLE])


@pytest.mark.parametrize("body", [_blocks, _columns_and_rows, _derived_types, _gathered])
def test_parts_of_a_buffer_come_back(
    comm: MPI.Intracomm, body: Callable[[cr.Communicator, np.ndarray], None]
) -> None:
    with opened(comm) as ours:
        values = np.arange(3.0 * max(4, ours.size)) * (ours.rank + 1)
        before = values.copy()

        def failing() -> None:
            body(ours, values)
            comm.Barrier()
            raise cr.PeerLate("mine", waited_s=1, limit_s=1)

        with pytest.raises(cr.PeerLate, match="mine"):
            attempted(ours, failing)
        assert np.array_equal(values, before)


def test_copies_are_dropped_when_an_attempt_has_ended(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        values = np.ones(1 << 20)
        tracemalloc.start()
        try:
            for attempt in ours.attempts():
                with attempt:
                    ours.Allreduce(MPI.IN_PLACE, values)
                    during, _ = tracemalloc.get_traced_memory()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert attempt.agreed
        assert during - after > values.nbytes / 2


def test_an_error_is_raised_as_it_is(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:

        def body() -> None:
            summed(ours)
            comm.Barrier()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            attempted(ours, body)


def test_wrong_use(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        with pytest.raises(cr.UsageError, match="limit is 0"):
            ours.attempts(limit=0)
        with pytest.raises(cr.UsageError, match="that was not entered"):
            for _ in ours.attempts():
                pass

        def inner() -> None:
            comm.Barrier()
            attempted(ours, ours.Barrier)

        with pytest.raises(cr.UsageError, match="an attempt inside of another one"):
            attempted(ours, inner)


def test_nobody_closes_in_an_attempt_what_all_will_vote_in(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        for attempt in ours.attempts():
            with attempt:
                with pytest.raises(cr.UsageError, match="after the loop"):
                    ours.close()
                ours.Dup().close()
        assert attempt.agreed
        ours.close()


def test_a_request_has_to_be_over(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours:
        given, taken = np.ones(5), np.zeros(5)
        for attempt in ours.attempts():
            with attempt:
                ours.Iallreduce(given, taken).wait()
        assert (taken == ours.size).all()


def test_faults_on_purpose_have_to_be_allowed(comm: MPI.Intracomm) -> None:
    with opened(comm) as ours, pytest.raises(cr.UsageError, match="not allowed"):
        ours.faults.fail_at(0, 0)


def test_a_fault_on_purpose(comm: MPI.Intracomm) -> None:
    with cr.init(comm, faults=True) as ours:
        with pytest.raises(cr.UsageError, match=f"no seat 99 among {ours.size} ranks"):
            ours.faults.fail_at(99, 0)
        ours.faults.fail_at(ours.seat, None, action="slow", factor=1.0)
        assert summed(ours) == ours.size * (ours.size + 1) // 2
        for point in ("allreduce", "allreduce:end"):
            ours.faults.fail_at(ours.seat, 1, point, "raise")
        assert summed(ours) > 0, "of another step"
