"""Calls that return a request and take a shortcut: right, counted, kept, followed."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.arguments.call_key import size_class
from closeranks.collectives.dispatch import request
from closeranks.collectives.dispatch.request import Request
from closeranks.collectives.engine import interpreter
from closeranks.collectives.fastpath.request_wait import ShortWait
from closeranks.collectives.fastpath.shortcut_layout import MANY_BEGUN
from closeranks.collectives.fastpath.shortcut_record import Begun
from closeranks.collectives.plans.collective import OPERATIONS
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.comms.wait import Deadline, wait
from tests.mpi.test_short_way import COUNT, METHODS, arguments, result

World = cr.Communicator


@pytest.fixture
def known(world: World | None) -> Iterator[World | None]:
    """A duplicate whose calls that return a request take shortcuts."""
    if world is None:
        yield None
        return
    assert interpreter.is_loaded()
    duplicate = world.Dup()
    assert wait(has_let_go, deadline=Deadline(10.0)), "of communicators of earlier tests"
    service = duplicate._service
    for name in OPERATIONS:
        outstanding = service.outstanding.begun
        origin, method = request.origin_of(service, name), f"i{name}"
        begun = Begun(Request, origin, outstanding, request.DROPPED, method)
        for size in (0, size_class(8 * COUNT)):
            service.shortcuts.learn_begun(name, size, begun)
    yield duplicate
    duplicate.Free()


def has_let_go() -> bool:
    """Whether no dropped request is under way: calls go the long way to find out."""
    gc.collect()
    request.let_go()
    return not request.kept()


def begins(method: str) -> str:
    """Name of the method that returns a request."""
    return f"I{method.lower()}"


def taken(comm: World, method: str) -> int:
    """How many calls took the shortcut."""
    return comm._service.shortcuts.calls()[method.lower(), "native"]


@pytest.mark.parametrize("method", METHODS)
def test_it_does_what_the_library_does(known: World, method: str) -> None:
    ours, theirs = arguments(known, method), arguments(known, method)
    begun = getattr(known, begins(method))(*ours)
    assert type(begun) is Request
    assert begun.Wait()
    assert begun == MPI.REQUEST_NULL
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}
    assert taken(known, method) == 1, request.DROPPED


@pytest.mark.parametrize("method", METHODS)
def test_gaps_on_one_rank_meet_the_others(known: World, method: str) -> None:
    ours = arguments(known, method, step=2 if known.rank == 0 else 1)
    theirs = arguments(known, method)
    getattr(known, begins(method))(*ours).Wait()
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}


def test_the_second_call_takes_it_and_a_blocking_one_does_not(comm: MPI.Intracomm) -> None:
    if comm.size < 2:
        return
    ours = cr.init(comm)
    ours.membership.chooser.pricing.native = NativeModel(1e-6, 1e-10)  # whatever else runs
    x, y = np.ones(COUNT), np.zeros(COUNT)
    ours.Iallreduce(x, y, algorithm="ring").Wait()  # loads compiled code
    assert interpreter.is_loaded()
    for calls in range(4):
        ours.Iallreduce(x, y).Wait()
        assert (y == comm.size).all()
        assert taken(ours, "Allreduce") == calls
    ours.Ibarrier().Wait()
    assert ours.statistics().calls == {"allreduce": 5, "barrier": 1}
    ours.Free()


def test_many_at_once_are_told_apart_and_waited_for_in_any_order(known: World) -> None:
    arrays = [np.full(COUNT, 1.0 + known.rank + k) for k in range(40)]
    sums = [np.zeros(COUNT) for _ in arrays]
    begun = [known.Iallreduce(x, y) for x, y in zip(arrays, sums, strict=True)]
    MPI.Request.Waitall(begun[::2])
    for one in reversed(begun):
        assert one.Wait()
        assert one.Test()
    expected = known.size * (known.size + 1) / 2
    assert [float(one[-1]) for one in sums] == [expected + known.size * k for k in range(40)]


def test_a_status_is_filled_in(known: World) -> None:
    status = MPI.Status()
    assert known.Ibarrier().Wait(status)
    assert not status.Is_cancelled()


def test_buffers_of_a_dropped_one_live_until_it_is_over(known: World, comm: MPI.Intracomm) -> None:
    if known.size == 1:
        return
    before = request.kept()
    if known.rank:
        comm.recv(source=0)  # so that rank 0 cannot be through before this
    x, y = np.ones(COUNT), np.zeros(COUNT)
    alive = weakref.ref(x), weakref.ref(y)
    known.Iallreduce(x, y)
    del x, y
    gc.collect()
    if known.rank == 0:
        assert all(one() is not None for one in alive)
        assert request.kept() > before
        for rank in range(1, known.size):
            comm.send(None, rank)
    deadline = time.monotonic() + 20
    while not all(comm.allgather(request.kept() <= before)):
        assert time.monotonic() < deadline, "a call that finds some goes the long way"
        known.Ibarrier().Wait()


def test_requests_are_forgotten_when_there_are_many(known: World) -> None:
    noted = known._service.outstanding.begun
    for _ in range(2 * MANY_BEGUN + 10):
        known.Ibarrier().Wait()
        assert len(noted) <= MANY_BEGUN
    assert known.statistics().calls["barrier"] == 2 * MANY_BEGUN + 10
    assert taken(known, "Barrier") >= 2 * MANY_BEGUN
    assert known._service.outstanding.are_over()
    assert not noted


def test_one_that_is_under_way_is_outstanding(known: World, comm: MPI.Intracomm) -> None:
    if known.size == 1:
        return
    outstanding = known._service.outstanding
    if known.rank == 0:
        begun = known.Ibarrier()
        assert not outstanding.are_over()
        comm.Barrier()
    else:
        comm.Barrier()
        begun = known.Ibarrier()
    begun.Wait()
    assert outstanding.are_over()


def test_an_attempt_follows_them(known: World) -> None:
    shortcuts = known._service.shortcuts
    for follows, straight in ((False, 1), (True, 1), (False, 2)):
        shortcuts.follow(follows)
        known.Ibarrier().Wait()
        assert taken(known, "Barrier") == straight


def test_the_short_wait_ends_while_another_rank_is_late(known: World, comm: MPI.Intracomm) -> None:
    if known.size == 1:
        return
    comm.Barrier()
    if known.rank == 0:
        time.sleep(0.05)
        known.Ibarrier().Wait()
        return
    begun = known.Ibarrier()
    began = time.perf_counter()
    assert not ShortWait.wait(begun, None)
    assert time.perf_counter() - began < 0.04, "it looks for ranks that give up meanwhile"
    begun.Wait()


def test_sums_go_past_mpi4py_and_all_else_through_it(known: World, comm: MPI.Intracomm) -> None:
    last, size = known.rank == known.size - 1, known.size
    for code in "dflqibBhHILQ?":
        x, y = np.ones(COUNT, code), np.zeros(COUNT, code)
        spec = [x, MPI.Datatype.fromcode(code)] if last else x
        for op in (MPI.SUM, MPI.MAX) if code != "?" else (MPI.LAND,):
            y[:] = 0
            known.Iallreduce(spec, y, op).Wait()
            assert (y == (size if op == MPI.SUM else 1)).all()
            y[:] = 0
            known.Iallreduce(spec, y, op=op).Wait()
            assert (y == (size if op == MPI.SUM else 1)).all()
    later = MPI.Op.Create(lambda _first, _second, _type: None, commute=False)
    x, y = np.full(COUNT, known.rank), np.zeros(COUNT, int)
    known.Iallreduce(x, y, later).Wait()
    assert set(y.tolist()) == {size - 1}
    later.Free()
    y[:] = known.rank
    known.Iallreduce(MPI.IN_PLACE, y, MPI.MAX).Wait()
    assert set(y.tolist()) == {size - 1}
    assert comm.allreduce(known.statistics().calls["allreduce"], MPI.MIN) == 4 * 12 + 4


@pytest.mark.parametrize("wrong", ["size", "type", "op", "keyword", "read-only"])
def test_what_mpi4py_or_we_refuse_is_refused_alike(known: World, wrong: str) -> None:
    x, y, op = np.ones(COUNT), np.zeros(COUNT), MPI.SUM
    named = {"root": 0} if wrong == "keyword" else {}
    if wrong == "size":
        x = np.ones(COUNT + 1)
    elif wrong == "type":
        x = np.ones(COUNT, int)
    elif wrong == "op":
        op = MPI.BAND  # of no floating numbers
    elif wrong == "read-only":
        y.flags.writeable = False
    errors = (TypeError, ValueError) if wrong in ("keyword", "read-only") else cr.UsageError
    with pytest.raises(errors):
        known.Iallreduce(x, y, op, **named)  # type: ignore[arg-type]
    x, y = np.ones(COUNT), np.zeros(COUNT)
    known.Iallreduce(x, y).Wait()
    assert (y == known.size).all()
