"""Persistent operations among mpi4py's own: started and waited for by its functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import persistent_operation
from closeranks.collectives.dispatch.persistent_creation import ShmPersistent
from closeranks.collectives.dispatch.persistent_operation import Persistent
from closeranks.errors import UsageError

#: The library's own handle, a kernel's start, plans, and what is packed or divided after it.
WAYS = ("native", "shared", "ring", "mean", "strided")
N = 50
IS_MPICH = MPI.get_vendor()[0] == "MPICH"


class Pair:
    """An operation of ours and one of mpi4py's with the same data."""

    def __init__(self, world: cr.Communicator, way: str) -> None:
        self.size = world.size
        gap = 2 if way == "strided" else 1
        x = np.full(gap * N, world.rank + 1.0)[::gap]
        self.ours, self.theirs = np.zeros(gap * N)[::gap], np.zeros(N)
        self.wanted = world.size * (world.size + 1) / 2
        op = cr.MEAN if way == "mean" else MPI.SUM
        self.scale = 1 / world.size if way == "mean" else 1.0
        is_name = way in ("native", "ring") or (way == "shared" and world.size > 1)
        algorithm = way if is_name else "native"
        self.operation = world.Allreduce_init(x, self.ours, op, algorithm=algorithm)
        self.plain = MPI.Intracomm(world).Dup()
        self.given = np.ascontiguousarray(x)
        self.own = self.plain.Allreduce_init(self.given, self.theirs)

    def check(self) -> None:
        """Both have their results; and forget them."""
        assert self.ours == pytest.approx(np.full(N, self.wanted * self.scale))
        assert (self.theirs == self.wanted).all()
        self.ours[:] = self.theirs[:] = -1

    def close(self) -> None:
        for one in (self.operation, self.own, self.plain):
            one.Free()
        assert self.operation == MPI.REQUEST_NULL


def _one_by_one(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        request.Start()


def _some(requests: list[MPI.Prequest]) -> None:
    left = len(requests)
    while left:
        left -= len(MPI.Request.Waitsome(requests) or [])


def _any(requests: list[MPI.Prequest]) -> None:
    for _ in requests:
        assert MPI.Request.Waitany(requests) != MPI.UNDEFINED
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


def _test_any(requests: list[MPI.Prequest]) -> None:
    for _ in requests:
        while not MPI.Request.Testany(requests)[1]:
            pass


def _each(requests: list[MPI.Prequest]) -> None:
    for request in requests:
        while not request.Get_status():
            pass
        assert request.Wait()


STARTS: list[Callable[[Any], None]] = [
    MPI.Prequest.Startall, _one_by_one, Persistent.Startall, MPI.Prequest.Startall,
]  # fmt: skip
WAITS: list[Callable[[Any], object]] = [MPI.Request.Waitall, _any, _some, _test_any, _each]


@pytest.mark.parametrize("way", WAYS)
def test_every_start_meets_every_wait(world: cr.Communicator, way: str) -> None:
    pair = Pair(world, way)
    assert isinstance(pair.operation, MPI.Prequest)
    requests = [pair.operation, pair.own]
    total = np.zeros(4)
    for turn in range(len(STARTS) * len(WAITS)):
        if turn % world.size == world.rank and turn % 3:
            time.sleep(1e-3)
        begin, end = STARTS[turn % len(STARTS)], WAITS[turn % len(WAITS)]
        begin(requests[:: 1 if turn % 3 else -1])
        if turn % 2:  # all ranks begin in one order
            world.Allreduce(np.ones(4), total, algorithm="shared" if world.size > 1 else "auto")
            assert (total == world.size).all()
        end(requests)
        pair.check()
    pair.close()


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_started_is_not_waited_for(world: cr.Communicator, way: str) -> None:
    pair = Pair(world, way)
    requests = [pair.operation, pair.own]
    # MPICH 5.0 waits for ever for a persistent collective of its own that was never started.
    assert MPI.Request.Waitall(requests[:1] if IS_MPICH else requests)
    assert MPI.Request.Testsome(requests) is None
    _one_by_one(requests)
    for request in requests:
        request.Wait()
    assert MPI.Request.Waitall(requests)
    pair.check()
    MPI.Prequest.Startall(requests)
    pair.operation.close()  # which waits
    pair.own.Wait()
    pair.check()
    pair.close()


def _is_idle(operation: Persistent) -> bool:
    """Ask all that may be asked, what cannot block first."""
    ones = [operation]
    operation.wait(timeout_s=0.0)
    return (
        MPI.Request.Testall(ones)
        and operation.Test()
        and operation.test()
        and operation.Get_status()
        and MPI.Request.Testany(ones) == (MPI.UNDEFINED, True)
        and MPI.Request.Testsome(ones) is None
        and MPI.Request.Waitall(ones)
        and operation.Wait()
        and MPI.Request.Waitany(ones) == MPI.UNDEFINED
        and MPI.Request.Waitsome(ones) is None
    )


@pytest.mark.parametrize("way", WAYS)
def test_before_its_first_start_every_wait_returns_at_once(
    world: cr.Communicator, way: str
) -> None:
    pair = Pair(world, way)
    assert _is_idle(pair.operation)
    MPI.Prequest.Startall([pair.operation, pair.own])
    MPI.Request.Waitall([pair.operation, pair.own])
    pair.check()
    pair.close()
    pair = Pair(world, way)
    assert _is_idle(pair.operation)
    pair.close()


@pytest.mark.parametrize("start", ["start", "Startall"])
@pytest.mark.parametrize("options", [{}, {"timeout_s": 30.0}], ids=["plain", "timed"])
def test_a_library_that_waits_for_idle_operations_gets_them_started(
    world: cr.Communicator,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    start: str,
) -> None:
    monkeypatch.setattr(persistent_operation, "is_idle", lambda _operation: False)
    pair = Pair(world, "native")
    operation, requests = pair.operation, [pair.operation, pair.own]
    becomes_plain = operation._is_library and start == "start" and not options
    assert operation._tag is not None
    assert _is_idle(operation)
    with world.using(**options):
        for _ in range(2):
            (MPI.Prequest.Startall if start == "Startall" else _one_by_one)(requests)
            MPI.Request.Waitall(requests)
            pair.check()
    assert (operation._tag is None) == becomes_plain, "from its start on the handle is its own"
    for begin in (_one_by_one, MPI.Prequest.Startall):
        begin(requests)
        MPI.Request.Waitall(requests)
        pair.check()
    assert MPI.Request.Waitall(requests)
    pair.close()


def test_starts_are_heard_of_in_their_order(world: cr.Communicator) -> None:
    kinds = ["ring", "shared", "binomial", "shared"] if world.size > 1 else ["ring"] * 4
    data = [np.full(N, float(n)) for n in range(4)]
    made = [world.Allreduce_init(MPI.IN_PLACE, x, algorithm=a)
            for x, a in zip(data, kinds, strict=True)]  # fmt: skip
    for turn in range(12):
        order = [(turn + 3 * n) % 4 for n in range(4)]
        for n, x in enumerate(data):
            x[:] = n
        if turn % world.size == world.rank:
            MPI.Prequest.Startall([made[n] for n in order])
        else:
            _one_by_one([made[n] for n in order])
        world.Barrier()
        MPI.Request.Waitall(made[::-1])
        for n, x in enumerate(data):
            assert (x == n * world.size).all()
    for one in made:
        one.Free()


@pytest.mark.usefixtures("hurried")
def test_operations_come_and_go_while_starts_are_looked_for(world: cr.Communicator) -> None:
    lasting = world.Allreduce_init(np.ones(N), np.zeros(N), algorithm="ring")
    for _ in range(60):
        passing = [
            world.Allreduce_init(np.ones(N), np.zeros(N), algorithm="ring") for _ in range(6)
        ]
        for one in passing:
            one.Free()
    total = np.zeros(N)
    heard = world.Allreduce_init(np.ones(N), total, algorithm="ring")
    MPI.Prequest.Startall([heard, lasting])
    MPI.Request.Waitall([heard, lasting])
    assert (total == world.size).all()
    heard.Free()
    lasting.Free()


def test_a_wait_of_mpi4pys_may_come_under_a_deadline(world: cr.Communicator) -> None:
    pair = Pair(world, "native")
    for _ in range(3):
        with world.using(timeout_s=30.0):
            _one_by_one([pair.operation, pair.own])
            MPI.Request.Waitall([pair.operation, pair.own])
            pair.check()
        MPI.Prequest.Startall([pair.operation, pair.own])
        MPI.Request.Waitall([pair.operation, pair.own])
        pair.check()
    pair.close()


def test_a_start_under_a_deadline_is_not_taken_for_the_one_before(world: cr.Communicator) -> None:
    if world.size == 1:
        pytest.skip("kernels need two ranks")
    given, taken, total = np.full(N, world.rank + 1.0), np.zeros(N), sum(range(world.size + 1))
    operation = world.Allreduce_init(given, taken, algorithm="shared")
    for turn in range(40):
        operation.start()
        MPI.Request.Waitall([operation])  # of which the operation hears nothing
        taken[:] = 0
        time.sleep(0.002 * ((turn + world.rank) % 3))  # one rank after the other
        with world.using(timeout_s=30.0):
            MPI.Prequest.Startall([operation])
            MPI.Request.Waitall([operation])
            assert taken.tolist() == [total] * N, turn
    operation.Free()


def test_hints_are_taken(world: cr.Communicator) -> None:
    info = MPI.Info.Create({"hint": "any"})
    x = np.full(N, world.rank + 1.0)
    made = [
        world.Barrier_init(info),
        world.Allreduce_init(x, np.zeros(N), MPI.SUM, info),
        world.Bcast_init(x.copy(), 0, info=info),
    ]
    info.Free()
    for operation in made:
        operation.Start()
        operation.Wait()
        operation.Free()
    with pytest.raises(UsageError, match="no MPI"):
        world.Barrier_init(0)  # type: ignore[arg-type]


def test_what_cannot_be_is_refused(world: cr.Communicator) -> None:
    operation = world.Allreduce_init(np.ones(N), np.zeros(N), algorithm="ring")
    with pytest.raises(UsageError, match="cannot be cancelled"):
        operation.Cancel()
    if world.rank == 0 and world.size > 1:
        MPI.Prequest.Startall([operation])
        with pytest.raises(UsageError, match="started twice"):
            operation.Start()
        MPI.Intracomm.Barrier(world)
    else:
        MPI.Intracomm.Barrier(world)
        operation.Start()
    operation.Wait()
    operation.Free()
    with pytest.raises(MPI.Exception):
        MPI.Prequest.Startall([operation])


def test_buckets_have_no_handle(world: cr.Communicator) -> None:
    buckets = world.bucketed({"a": np.ones(N)})
    operation = buckets._buckets[0].operation
    assert isinstance(operation, (ShmPersistent, Persistent))
    assert operation == MPI.REQUEST_NULL
    buckets.ready("a")
    buckets.wait()
