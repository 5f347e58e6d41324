"""Persistent operations whose starts are kernels in node memory."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks
from closeranks.collectives.dispatch import persistent_creation
from closeranks.collectives.dispatch.persistent_creation import ShmPersistent
from closeranks.errors import PeerLate, Revoked, UsageError

N = 100


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every call for a brief one: what it is predicted to take depends on the machine."""
    monkeypatch.setattr(persistent_creation, "UNATTENDED_S", float("inf"))


def test_what_takes_long_is_left_to_a_thread(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_creation, "UNATTENDED_S", 0.0)
    x, y = np.ones(N), np.zeros(N)
    if world.size == 1:
        pytest.skip("needs two ranks")
    with world.Allreduce_init(x, y, algorithm="shared") as operation:
        assert not isinstance(operation, ShmPersistent)
        operation.Start()
        assert operation.Wait()
    assert (y == world.size).all()


def made(
    world: closeranks.Communicator, factor: int = 1, n: int = N
) -> tuple[ShmPersistent, np.ndarray, int]:
    """Prepare an all-reduce; gives its result and what it should be."""
    x, y = np.full(n, factor * (world.rank + 1)), np.zeros(n, int)
    if world.size == 1:
        pytest.skip("needs two ranks")
    operation = world.Allreduce_init(x, y, algorithm="shared")
    assert isinstance(operation, ShmPersistent)
    return operation, y, factor * world.size * (world.size + 1) // 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("n", [N, 100 * N])
def test_every_start_sums_once(world: closeranks.Communicator, n: int, late: bool) -> None:
    operation, y, wanted = made(world, n=n)
    with operation:
        for turn in range(50):
            if late and turn % world.size == world.rank:
                time.sleep(1e-3)
            operation.Start()
            with pytest.raises(UsageError, match="started twice"):
                operation.Start()
            assert operation.Wait()
            assert (y == wanted).all()
            y[:] = -1
        assert operation.Wait(), "nothing is under way"
    assert world.statistics().algorithms["allreduce"]["shared"] >= 50


def test_other_calls_may_come_before_the_wait(world: closeranks.Communicator) -> None:
    first, y, wanted = made(world)
    second, z, doubled = made(world, 2)
    mine, total = np.full(N, world.rank + 1), np.zeros(N, int)
    for turn in range(20):
        for array in (y, z, total):
            array[:] = -1
        if turn % world.size == world.rank:
            time.sleep(1e-3)
        first.start()
        second.start()
        if turn % 2:
            request = world.Iallreduce(mine, total, algorithm="shared")
            request.Wait()
        else:
            world.Allreduce(mine, total)
        assert (total == wanted).all()
        for operation in (second, first) if turn % 3 else (first, second):
            operation.wait()
        assert (y == wanted).all()
        assert (z == doubled).all()
    first.start()
    first.close()  # which waits
    assert (y == wanted).all()
    second.close()


@pytest.mark.parametrize("n", [N, 100 * N])
def test_many_may_be_under_way(world: closeranks.Communicator, n: int) -> None:
    many = [made(world, factor, n) for factor in range(1, 7)]
    for turn in range(12):
        MPI.Intracomm.Barrier(world)
        if turn % world.size == world.rank:
            time.sleep(1e-3)
        for operation, y, _ in many:
            y[:] = -1
            operation.start()
        assert all(operation._started for operation, _, _ in many), "not the engine's"
        if turn % 3 == 1 and turn % world.size == world.rank:
            MPI.Intracomm.Barrier(world)  # the others wait for the watch of this rank
        for operation, y, wanted in many[:: -1 if turn % 2 else 1]:
            operation.wait()
            assert (y == wanted).all()
        if turn % 3 == 1 and turn % world.size != world.rank:
            MPI.Intracomm.Barrier(world)
    for operation, _, _ in many:
        operation.close()


@pytest.mark.parametrize("n", [N, 100 * N])
def test_who_has_started_may_do_something_else(world: closeranks.Communicator, n: int) -> None:
    """The others wait for ranks that wait for them in the library, which runs no kernels."""
    operation, y, wanted = made(world, n=n)
    for turn in range(6):
        operation.start()
        if turn % world.size == world.rank:
            operation.wait()
            assert (y == wanted).all()
        MPI.Intracomm.Barrier(world)
        operation.wait()
        assert (y == wanted).all()
        y[:] = -1
        time.sleep(1.1 * (turn == 3))  # the watch falls asleep, and is woken
    operation.close()


def test_a_start_does_not_wait_for_others(world: closeranks.Communicator) -> None:
    operation, y, wanted = made(world)
    operation.start()
    operation.wait()
    if world.rank == 0:
        operation.start()
        assert not operation.test()
        with pytest.raises(TimeoutError, match="not finished after"):
            operation.wait(timeout_s=0.01)
        MPI.Intracomm.Barrier(world)
    else:
        MPI.Intracomm.Barrier(world)
        operation.start()
    while not operation.test():
        pass
    assert (y == wanted).all()
    operation.close()
    with pytest.raises(Revoked, match="closed"):
        operation.start()


@pytest.mark.parametrize("name", ["Bcast", "Reduce", "Allgather", "Alltoall", "Barrier"])
def test_other_operations(world: closeranks.Communicator, name: str) -> None:
    p, r = world.size, world.rank
    x, y = np.arange(p) + 10 * r, np.full(p, -1)
    arguments, wanted = {
        "Bcast": ((y, p - 1), np.arange(p) + 10 * (p - 1)),
        "Reduce": ((x, y, MPI.SUM, 0), sum(np.arange(p) + 10 * k for k in range(p))),
        "Allgather": ((x[:1], y), 10 * np.arange(p)),
        "Alltoall": ((x, y), 10 * np.arange(p) + r),
        "Barrier": ((), None),
    }[name]
    operation = getattr(world, f"{name}_init")(*arguments)
    for turn in range(20):
        y[:] = -1
        if name == "Bcast" and r == p - 1:
            y[:] = wanted
        if turn % p == r:
            time.sleep(1e-4)
        operation.Start()
        operation.Wait()
        if wanted is not None and (name != "Reduce" or r == 0):
            assert (y == wanted).all(), (turn, y)
    operation.close()


def test_what_is_copied_at_a_start_is_copied_anew(world: closeranks.Communicator) -> None:
    if world.size == 1:
        pytest.skip("needs two ranks")
    p, r = world.size, world.rank
    whole = np.zeros(2 * p, int)
    scatter = world.Reduce_scatter_block_init(MPI.IN_PLACE, whole, algorithm="shared")
    gaps, every = np.zeros((3, 2), int), np.zeros(3 * p, int)
    column = MPI.INT64_T.Create_vector(3, 1, 2).Commit()
    gather = world.Allgather_init([gaps, 1, column], every, algorithm="shared")
    table = np.zeros(p, int)
    swap = world.Alltoall_init(MPI.IN_PLACE, table, algorithm="shared")
    for turn in range(5):
        whole[:] = turn + r
        gaps[:, 0] = 10 * turn + r
        table[:] = 10 * turn + p * r + np.arange(p)
        for operation in (scatter, gather, swap):
            operation.start()
            operation.wait()
        assert (whole[:2] == p * turn + p * (p - 1) // 2).all()
        assert every.tolist() == np.repeat(10 * turn + np.arange(p), 3).tolist()
        assert table.tolist() == (10 * turn + p * np.arange(p) + r).tolist()
    for operation in (scatter, gather, swap):
        operation.close()
    column.Free()


def test_what_it_is_made_for_keeps_its_timeouts(world: closeranks.Communicator) -> None:
    operation, _, _ = made(world)
    with world.using(timeout_s=0.2):
        if world.rank == 0:
            operation.start()
            with pytest.raises(PeerLate):
                operation.wait()
        else:
            time.sleep(0.5)


def test_after_a_world_is_given_up_a_wait_says_so(comm: MPI.Intracomm) -> None:
    if comm is None or comm.size == 1:
        pytest.skip("needs two ranks")
    operation = None
    with suppress(ZeroDivisionError), closeranks.init(comm) as world:
        operation, _, _ = made(world)
        if world.rank == 0:
            operation.start()
        comm.Barrier()  # else it may hear of who is gone before
        raise ZeroDivisionError
    assert operation is not None
    if comm.rank == 0 and operation.under_way:
        with pytest.raises(Revoked):
            operation.wait()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("algorithm", ["shared", "ring", "native"])
def test_what_had_ended_before_a_world_was_given_up_is_not_void(
    comm: MPI.Intracomm, algorithm: str, waits: bool
) -> None:
    if comm.size == 1:
        pytest.skip("needs two ranks")
    world = closeranks.init(comm)
    x, y = np.full(N, world.rank + 1), np.zeros(N, int)
    operation: Any = world.Allreduce_init(x, y, algorithm=algorithm)
    assert isinstance(operation, ShmPersistent) == (algorithm == "shared")
    operation.start()
    until = time.monotonic() + 20
    while not operation._is_through():
        assert time.monotonic() < until
        operation.advance() if isinstance(operation, ShmPersistent) else MPI.COMM_SELF.Iprobe()
    comm.Barrier()
    world.membership.world.revoke()
    assert not operation.is_void
    if waits:
        operation.wait()
    else:
        assert operation.test()
    assert (y == comm.size * (comm.size + 1) // 2).all()
    with pytest.raises(closeranks.PeerError):
        operation.start()
    comm.Barrier()
    world.abandon()


def test_a_handler_may_ask_in_the_middle_of_it(world: closeranks.Communicator) -> None:
    if world.size == 1:
        pytest.skip("needs two ranks")
    operation: Any
    operation, y, wanted = made(world)
    for _ in range(3):
        if world.rank:
            time.sleep(0.05)  # the others have not ended when they begin to wait
        operation.start()
        kernel, asked = operation._stay, list[bool]()

        def stay(kernel: Any = kernel, asked: list[bool] = asked) -> bool:
            asked.append(operation.advance())
            return bool(kernel())

        operation._stay = stay
        operation.wait()
        operation._stay = kernel
        assert not any(asked)
        assert (y == wanted).all()


def test_an_engines_start_goes_on_while_others_look(world: closeranks.Communicator) -> None:
    operation, y, wanted = made(world)
    x, z = np.ones(1 << 16), np.zeros(1 << 16)
    request = world.Iallreduce(x, z, algorithm="ring")
    if world.rank == 0:
        operation.start()
        while not operation.test():
            pass
        request.Wait()
    else:
        request.Wait()
        operation.start()
        operation.wait()
    assert (y == wanted).all()
    assert (z == world.size).all()
    operation.close()


def test_what_it_is_made_with_is_tried_first(world: closeranks.Communicator) -> None:
    x, y = np.zeros(N), np.ones(N)
    with world.Allreduce_init(x, y) as operation:
        assert (y == 1).all(), "on memory of our own"
        left = world.explain("allreduce", x.nbytes, "float64").calls_to_settle
        assert left == 0 or world.size == 1
        assert world.statistics().calls.get("allreduce", 0) == 0
        assert operation.algorithm in {"shared", "native"} or world.size > 2
