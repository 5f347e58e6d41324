"""Calls of many counts share bound plans, and each gives what MPI means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import plan_cache
from closeranks.collectives.dispatch.plan_cache import PlanCache
from closeranks.collectives.refill.refilled_plan import Refilled
from closeranks.comms.settings import runs_compiled

#: Up and down, none, fewer than ranks, and what is cut into more pieces than before.
COUNTS = (1000, 7, 0, 1, 2, 3, 4, 5, 6, 1001, 20_000, 19_999, 12, 1000, 0, 50_000, 8, 1003)

pytestmark = pytest.mark.skipif(not runs_compiled(), reason="Python binds plans anew")


def cache_of(world: cr.Communicator) -> PlanCache:
    """The bound plans that a communicator keeps."""
    return world._service.bindings


def shared_by(world: cr.Communicator) -> list[list[Refilled]]:
    """The bound plans that counts share, by steps; the last used first."""
    kept = cache_of(world)._kept.values()
    return [
        bounds for one in kept if isinstance(one, plan_cache._Counts) for _, bounds in one.plans
    ]


def expected_sum(world: cr.Communicator, count: int) -> Any:
    """Sum of what `given` gives on all ranks."""
    return sum(given(rank, count) for rank in range(world.size))


def given(rank: int, count: int) -> Any:
    return np.arange(count, dtype=np.int64) % 97 + 1000 * (rank + 1)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "two_shot", "rabenseifner"])
def test_an_allreduce_of_any_count_is_right(world: cr.Communicator | None, algorithm: str) -> None:
    if world is None or world.size == 1:
        return
    for count in COUNTS:
        taken = np.full(count, -1)
        world.Allreduce(given(world.rank, count), taken, algorithm=algorithm)
        assert (taken == expected_sum(world, count)).all()
        both = given(world.rank, count)
        world.Allreduce(MPI.IN_PLACE, both, algorithm=algorithm)
        assert (both == taken).all()
    assert len(cache_of(world)) == 1
    assert len(world._service.choice._fitting) == 1
    assert all(len(bounds) == 1 for bounds in shared_by(world))


@pytest.mark.parametrize("root", [0, -1])
def test_other_operations_of_any_count_are_right(world: cr.Communicator | None, root: int) -> None:
    if world is None or world.size == 1:
        return
    size, rank, root = world.size, world.rank, root % world.size
    for count in (*COUNTS[:8], *COUNTS[-4:]):
        block, all_blocks = given(rank, count), np.full(size * count, -1)
        parts = np.concatenate([given(one, count) for one in range(size)])
        for algorithm in ("ring", "bruck", "recursive_doubling"):
            all_blocks[:] = -1
            world.Allgather(block, all_blocks, algorithm=algorithm)
            assert (all_blocks == parts).all()
        for algorithm in ("pairwise", "bruck"):
            world.Alltoall(parts + rank, all_blocks, algorithm=algorithm)
            sent = [given(rank, count) + one for one in range(size)]
            assert (all_blocks == np.concatenate(sent)).all()
        summed = np.full(count, -1)
        world.Reduce_scatter_block(parts + rank, summed, algorithm="recursive_halving")
        assert (summed == size * block + size * (size - 1) // 2).all()
        whole = block if rank == root else np.empty_like(block)
        world.Bcast(whole, root, algorithm="chain")
        assert (whole == given(root, count)).all()
        world.Gather(block, all_blocks, root, algorithm="binomial")
        assert rank != root or (all_blocks == parts).all()
        own = np.full(count, -1)
        world.Scatter(parts if rank == root else None, own, root, algorithm="binomial")
        assert (own == block).all()


def test_overlapping_calls_have_bound_plans_of_their_own(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    counts = (900, 5000, 901, 64, 5001, 900)
    for _ in range(2):
        taken = [np.full(count, -1) for count in counts]
        begun = [
            world.Iallreduce(given(world.rank, count), into, algorithm="ring")
            for count, into in zip(counts, taken, strict=True)
        ]
        for request in begun:
            request.Wait()
        for count, into in zip(counts, taken, strict=True):
            assert (into == expected_sum(world, count)).all()
    (bounds,) = shared_by(world)
    assert 1 <= len(bounds) <= len(counts)
    assert not any(bound.busy for bound in bounds)


def test_a_busy_bound_plan_is_not_refilled(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    first, second = np.full(5000, -1), np.full(77, -1)
    world.Allreduce(given(world.rank, 5000), first, algorithm="ring")
    ((bound,),) = shared_by(world)
    bound.busy = True
    world.Allreduce(given(world.rank, 77), second, algorithm="ring")
    assert bound.count == 5000
    bound.busy = False
    assert (second == expected_sum(world, 77)).all()
    assert len(shared_by(world)[0]) == 2


def test_persistent_operations_keep_theirs(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    source, target = given(world.rank, 321), np.full(321, -1)
    kept = world.Allreduce_init(source, target, algorithm="ring")
    for count in (4000, 322, 320):
        target[:] = -1
        kept.Start()
        taken = np.full(count, -1)
        world.Allreduce(given(world.rank, count), taken, algorithm="ring")
        kept.Wait()
        assert (target == expected_sum(world, 321)).all()
        assert (taken == expected_sum(world, count)).all()
    kept.Free()


def test_ops_of_the_user_are_bound_anew(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return

    def add(source: Any, target: Any, _: MPI.Datatype) -> None:
        np.frombuffer(target, np.int64)[:] += np.frombuffer(source, np.int64)

    op = MPI.Op.Create(add, commute=True)
    for count in (10, 11, 10, 300):
        taken = np.full(count, -1)
        world.Allreduce(given(world.rank, count), taken, op, algorithm="ring")
        assert (taken == expected_sum(world, count)).all()
    assert not shared_by(world)
    op.Free()


def test_memory_that_is_not_aligned_is_bound_anew(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    for count in (10, 11, 300):
        raw = np.zeros(8 * count + 1, np.uint8)
        taken = raw[1:].view(np.int64)
        world.Allreduce(given(world.rank, count), taken, algorithm="ring")
        assert (taken == expected_sum(world, count)).all()
        world.Allreduce(given(world.rank, count), aligned := np.full(count, -1), algorithm="ring")
        assert (aligned == taken).all()


def test_lent_memory_is_given_back(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    for count in (10, 10, 11, 300, 10):
        owner = bytearray(8 * count)
        taken = np.frombuffer(owner, np.int64)
        world.Allreduce(given(world.rank, count), taken, algorithm="ring")
        assert (taken == expected_sum(world, count)).all()
        del taken
        owner.append(1)  # BufferError if somebody has a view of it


def test_bytes_sent_are_counted_for_each_count(world: cr.Communicator | None) -> None:
    if world is None or world.size == 1:
        return
    total = 0
    for count in (world.size * 10, world.size * 7, world.size * 10, world.size):
        taken = np.full(count, -1)
        world.Allreduce(given(world.rank, count), taken, algorithm="ring")
        total += 2 * (world.size - 1) * 8 * count // world.size
    assert sum(world.statistics().bytes_per_level.values()) == total


def test_what_is_kept_is_bounded(
    world: cr.Communicator | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world is None or world.size == 1:
        return
    monkeypatch.setattr(plan_cache, "MOST_BYTES", 200_000)
    cache = cache_of(world)
    for count in (*COUNTS, 5000, 9, 50_000, 9):
        taken = np.full(count, -1)
        for algorithm in ("ring", "recursive_doubling", "rabenseifner"):
            world.Allreduce(given(world.rank, count), taken, algorithm=algorithm)
            assert (taken == expected_sum(world, count)).all()
            kept = [bound for bounds in shared_by(world) for bound in bounds]
            assert cache._bytes == sum(bound.weight for bound in kept) <= 200_000
    monkeypatch.setattr(plan_cache, "MOST", 2)
    world.Allreduce(given(world.rank, 9), np.empty(9, np.int64), MPI.MAX, algorithm="ring")
    kept = [bound for bounds in shared_by(world) for bound in bounds]
    assert len(cache) == 2
    assert cache._bytes == sum(bound.weight for bound in kept)


def test_counts_that_fit_no_kept_steps_have_plans_of_their_own(
    world: cr.Communicator | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world is None or world.size == 1:
        return
    monkeypatch.setattr(plan_cache, "_MOST_STEPS", 1)
    monkeypatch.setattr(plan_cache, "_MOST_ALONE", 2)
    cache = cache_of(world)

    def call(count: int) -> list[int]:
        taken = np.full(count, -1)
        world.Allreduce(given(world.rank, count), taken, algorithm="ring")
        assert (taken == expected_sum(world, count)).all()
        return [bound.count for bounds in shared_by(world) for bound in bounds]

    assert call(0) == [0]
    for count in (500, 501, 500):
        assert call(count) == [-1]  # looked at, and found not to fit
    assert len(cache) == 3
    assert call(502) == []
    assert call(500) == [500]
    assert call(503) == [503]
    assert call(0) == [-1]
    kept = [bound for bounds in shared_by(world) for bound in bounds]
    assert cache._bytes >= sum(bound.weight for bound in kept)
