"""Persistent operations that are short kernels in node memory."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

import closeranks
from closeranks.collectives.near_persistent import NearPersistent
from closeranks.errors import Revoked, UsageError

N = 100


def made(world: closeranks.Communicator, factor: int = 1) -> tuple[NearPersistent, np.ndarray, int]:
    """Prepare an all-reduce; gives its result and what it should be."""
    x, y = np.full(N, factor * (world.rank + 1)), np.zeros(N, int)
    if world.size == 1:
        pytest.skip("needs two ranks")
    operation = world.Allreduce_init(x, y, algorithm="shared")
    assert isinstance(operation, NearPersistent)
    return operation, y, factor * world.size * (world.size + 1) // 2


@pytest.mark.parametrize("late", [False, True])
def test_every_start_sums_once(world: closeranks.Communicator, late: bool) -> None:
    operation, y, wanted = made(world)
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


def test_what_it_is_made_with_is_tried_first(world: closeranks.Communicator) -> None:
    x, y = np.zeros(N), np.ones(N)
    with world.Allreduce_init(x, y) as operation:
        assert (y == 1).all(), "on memory of our own"
        left = world.explain("allreduce", x.nbytes, "float64").calls_to_settle
        assert left == 0 or world.size == 1
        assert world.statistics().calls.get("allreduce", 0) == 0
        assert operation.algorithm in {"shared", "native"} or world.size > 2
