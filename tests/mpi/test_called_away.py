"""Calls whose caller the handler of a signal takes away, between whatever two lines."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks
from closeranks.collectives.arguments import native_handover
from closeranks.collectives.arguments.native_handover import Handover
from closeranks.collectives.dispatch import persistent_creation
from closeranks.collectives.dispatch.request import Request
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.interpreter import execution as interpreted
from closeranks.collectives.engine.native_call import begin
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.identity import Identity
from closeranks.comms.exit import signal_handlers
from closeranks.comms.mpi.mpi_lock import in_turn
from closeranks.comms.wait import Deadline
from closeranks.errors import Revoked
from tests.mpi.ground import opened, rounds, run
from tests.mpi.test_engine import gated


class _Alarm(BaseException):
    pass


def _made(bound: Bound, limit_s: float = 20.0) -> Execution:
    """Make an execution that is to be started."""
    identity = Identity(bound.world.epoch, bound.world.sequence())
    return interpreted(bound, identity, deadline=Deadline(limit_s))


def _raise_alarm(*_: object) -> Execution:
    raise _Alarm


def _first_time(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let the handler of a signal raise when a call returns for the first time."""
    calls: list[object] = []

    def method(*arguments: Any, **named: Any) -> Any:
        answer = call(*arguments, **named)
        calls.append(answer)
        if len(calls) == 1:
            raise _Alarm
        return answer

    return method


@pytest.mark.parametrize("place", ["leave", "told"])
def test_who_waits_hears_of_an_end_that_was_interrupted(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with opened(comm) as world:
        bound, event, output = gated(world)
        told: list[Execution] = []
        execution = _made(bound)
        execution.when_finished(_first_time(told.append) if place == "told" else told.append)
        request = Request.of_plan(execution, lambda error: error)
        if place == "leave":
            monkeypatch.setattr(world.attendance, "leave", _first_time(world.attendance.leave))
        event.is_open = True
        with pytest.raises(_Alarm):
            engine().start(execution)
        assert execution.finished
        assert execution.drained
        assert execution.error is None
        assert set(told) == {execution}
        assert not engine().in_flight
        request.Wait()
        assert output.tolist() == [0, 1, 2, 3]
        run(bound)
        assert not world.revoked


def test_who_waits_hears_of_a_failure_that_was_interrupted(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size > 1:  # who comes second has heard of the first
        return
    with opened(comm) as world:
        told: list[Execution] = []
        execution = _made(gated(world)[0])
        execution.when_finished(told.append)
        engine().start(execution)
        with monkeypatch.context() as patch:
            patch.setattr(Execution, "_conclude", _first_time(lambda _: None))
            with pytest.raises(_Alarm):
                engine().fail(execution, Revoked("allreduce"))
        assert execution.finished
        assert told == [execution]
        assert world.revoked
        assert not engine().in_flight


def test_a_start_that_is_interrupted_goes_on_without_its_caller(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(comm) as world:
        bound, event, output = gated(world)
        execution = _made(bound)
        with monkeypatch.context() as patch:
            patch.setattr(engine(), "_look_now_and_then", _first_time(lambda: None))
            with pytest.raises(_Alarm):
                engine().start(execution)
        event.is_open = True
        limit = time.monotonic() + 10
        while not execution.drained:
            assert time.monotonic() < limit, "nobody drives it"
            time.sleep(0.001)
        assert output.tolist() == [0, 1, 2, 3]
        assert not world.revoked


def _raise(*_: object, **__: object) -> None:
    raise _Alarm


@pytest.mark.parametrize("place", ["sequence", "_execution", "start", "wait"])
def test_no_call_is_forgotten_between_its_number_and_its_end(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    one = world.Dup()
    ours, x, y = one._service.world, np.full(8, 1 + world.rank), np.zeros(8, int)
    wanted = np.full(8, world.size * (world.size + 1) // 2)
    one.Allreduce(x, y, algorithm="ring")
    owner = {"sequence": ours, "_execution": one._service}.get(place, engine())
    y[:] = 0
    world.Barrier()  # nobody is in that call any more
    with monkeypatch.context() as patch:
        patch.setattr(owner, place, _raise)
        with pytest.raises((_Alarm, Revoked)):  # or another one's is heard of before
            one.Allreduce(x, y, algorithm="ring")
    if place == "sequence":  # it has no number, and may come again
        one.Allreduce(x, y, algorithm="ring")
    limit = time.monotonic() + 10
    while engine().in_flight:
        assert time.monotonic() < limit, "nobody drives it"
        time.sleep(0.001)
    is_begun = place in ("sequence", "wait")
    assert ours.revoked != is_begun, "the others hear of what was not begun"
    assert y.tolist() == (wanted.tolist() if is_begun else [0] * 8)
    world.Barrier()
    one.Free()


def test_the_others_hear_of_a_start_that_was_not_begun_in_full(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size > 1:  # who comes second has heard of the first
        return
    with opened(comm) as world:
        execution = _made(gated(world)[0])
        monkeypatch.setattr(world.attendance, "enter", _first_time(world.attendance.enter))
        with pytest.raises(_Alarm):
            engine().start(execution)
        assert world.revoked
        assert isinstance(execution.error, Revoked)
        assert not engine().in_flight


def test_other_nodes_hear_of_a_call_that_was_not_begun_in_full(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size < 2:
        pytest.skip("nobody else")
    world = closeranks.init(comm)
    world.Barrier(algorithm="dissemination")
    carrying = world._service.world
    if comm.rank == 0:
        monkeypatch.setattr(carrying, "node", SimpleNamespace(size=1))
        monkeypatch.setattr(world._service, "_execution", _raise_alarm)
    else:  # as on another node, whose ranks see no abort word of this one's
        monkeypatch.setattr(carrying, "_word", memoryview(bytearray(8)).cast("q"))
    comm.Barrier()  # nobody is in the first one any more
    with pytest.raises(Revoked if comm.rank else _Alarm) as met:
        world.Barrier(algorithm="dissemination")
    assert not comm.rank or "rank 0 left by _Alarm" in str(met.value)
    world.abandon()


def test_what_the_library_has_begun_keeps_its_memory(comm: MPI.Intracomm) -> None:
    """Whoever began it was called away before anybody could wait for it."""

    def call() -> weakref.ref[Any]:
        given, taken = np.ones(100_000), np.empty(100_000)
        handover = Handover("Allreduce", (given, taken), None)
        with pytest.raises(_Alarm):
            begin(world, comm, "allreduce", handover, _first_time(lambda _: None))
        return weakref.ref(taken)

    with opened(comm) as world:
        if comm.rank:
            comm.recv(source=0)
            data = np.ones(100_000), np.empty(100_000)
            comm.Iallreduce(*data).Wait()
            return
        taken = call()
        gc.collect()
        assert world.revoked
        assert comm.size == 1 or taken() is not None, "the others have not come"
        for other in range(1, comm.size):
            comm.send(None, other)
        limit = time.monotonic() + 10
        while taken() is not None:
            assert time.monotonic() < limit, "it is kept for ever"
            rounds(100)
            gc.collect()


def test_no_signal_comes_between_a_call_of_the_library_and_its_request() -> None:
    def ring(*_: object) -> None:
        raise _Alarm

    begun: list[Any] = []
    plain: Any = SimpleNamespace(Ibarrier=ctypes.CDLL(None)["raise"])
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(_Alarm):
            native_handover.begin(plain, Handover("Barrier", (int(signal.SIGALRM),), None), begun)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(begun) == 1


@pytest.mark.parametrize("name", ["_look_once", "_stay"])
def test_a_kernel_that_has_ended_is_not_run_again(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The handler comes when it has returned, in the start or in the wait."""
    if world.size == 1:
        pytest.skip("needs two ranks")
    monkeypatch.setattr(persistent_creation, "UNATTENDED_S", float("inf"))
    x, y = np.full(100, world.rank + 1), np.zeros(100, int)
    wanted = world.size * (world.size + 1) // 2
    operation: Any = world.Allreduce_init(x, y, algorithm="shared")
    looks = AtItsEnd(getattr(operation, name))
    monkeypatch.setattr(operation, name, looks)
    for turn in range(1200):
        if turn % 60 == 59 and all(world.allgather(looks.alarms)):
            break  # on a busy machine kernels seldom end where they are looked for
        if turn % world.size == world.rank:
            time.sleep(1e-3)
        for step in (operation.start, operation.wait):
            try:
                step()
            except _Alarm:
                assert operation.under_way
        operation.wait()
        assert (y == wanted).all(), turn
        y[:] = -1
    operation.close()
    assert looks.alarms, "no signal has come"


class AtItsEnd:
    """A kernel, after whose end the handler of a signal raises, each second time."""

    def __init__(self, kernel: Callable[[], bool]) -> None:
        self._kernel, self._ends, self.alarms = kernel, 0, 0

    def __call__(self) -> bool:
        over = self._kernel()
        self._ends += over
        if over and self._ends % 2 and threading.current_thread() is threading.main_thread():
            self.alarms += 1
            raise _Alarm
        return over


def test_no_start_keeps_its_lock(
    world: closeranks.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.size == 1:
        pytest.skip("needs two ranks")
    monkeypatch.setattr(persistent_creation, "UNATTENDED_S", float("inf"))
    x, y = np.full(100, world.rank + 1), np.zeros(100, int)
    operation: Any = world.Allreduce_init(x, y, algorithm="shared")
    lock = operation._lock
    takes = SimpleNamespace(acquire=_first_time(lock.acquire), release=lock.release)
    monkeypatch.setattr(operation, "_lock", takes)
    with pytest.raises(_Alarm):
        operation.advance()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_turn, lock, lambda: True).result() is True
    monkeypatch.undo()
    operation.start()
    operation.close()
    assert (y == world.size * (world.size + 1) // 2).all()


@pytest.mark.parametrize("place", ["decide", "_prepared", "_learn"])
def test_what_the_handler_of_a_signal_raises_waits_for_the_end_of_a_trial(
    world: closeranks.Communicator | None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if world is None or world.size != 3:
        return

    def ring(*_: object) -> None:
        raise _Alarm

    with world.Dup() as fresh:
        before = signal.signal(signal.SIGALRM, ring)
        comes = iter([True])
        owner = fresh._service.choice if place == "decide" else fresh._service
        known = getattr(owner, place)

        def interrupted(*arguments: Any, **named: Any) -> Any:
            found = known(*arguments, **named)
            if fresh.rank == 0 and (place != "decide" or found[1]) and next(comes, False):
                if place == "decide":
                    signal_handlers.defer_handlers()  # as the next line of the call does
                signal.raise_signal(signal.SIGALRM)
            return found

        monkeypatch.setattr(owner, place, interrupted)
        rung = 0
        try:
            for number in range(40):
                total = np.zeros(20)
                try:
                    fresh.Allreduce(np.full(20, float(number)), total)
                except _Alarm:
                    rung += 1
                assert total.tolist() == [3.0 * number] * 20, number
        finally:
            signal.signal(signal.SIGALRM, before)
        assert rung == (fresh.rank == 0)
        assert signal.getsignal(signal.SIGALRM) == before


def test_a_signal_that_comes_for_a_while_does_not_wait(
    world: closeranks.Communicator | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world is None or world.size != 1:
        return

    def ring(*_: object) -> None:
        raise _Alarm

    monkeypatch.setattr(signal_handlers, "PATIENCE_S", 0.1)

    def thrice() -> None:
        signal_handlers.defer_handlers()
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)
        assert signal_handlers.are_deferred()
        time.sleep(0.1)
        signal.raise_signal(signal.SIGALRM)
        pytest.fail("nobody waits for the third")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(_Alarm), signal_handlers.DeferredHandlers():
            thrice()
        assert not signal_handlers.are_deferred()
        assert signal.getsignal(signal.SIGALRM) is ring
    finally:
        signal.signal(signal.SIGALRM, before)


def _alarm_while_others_are_late(comm: MPI.Intracomm, call: Callable[[], object]) -> bool:
    """Make a call to which rank 0 comes first, and a signal to it; tell whether it raised."""

    def raises(_number: int, _frame: object) -> None:
        raise _Alarm

    before = signal.signal(signal.SIGALRM, raises)
    try:
        if comm.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            time.sleep(0.4)
        call()
    except _Alarm:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


OBJECTS: dict[str, Callable[[Any], object]] = {
    "allreduce": lambda world: world.allreduce([world.rank]),
    "reduce": lambda world: world.reduce([world.rank], root=world.size - 1),
    "scan": lambda world: world.scan([world.rank]),
    "exscan": lambda world: world.exscan([world.rank]),
    "allgather": lambda world: world.allgather(world.rank),
    "gather": lambda world: world.gather(world.rank, root=world.size - 1),
    "bcast": lambda world: world.bcast(world.rank, root=world.size - 1),
    "scatter": lambda world: world.scatter(range(world.size), root=world.size - 1),
    "alltoall": lambda world: world.alltoall(range(world.size)),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_call_with_objects_ends_before_a_handler_raises(
    world: closeranks.Communicator, name: str
) -> None:
    if world.size == 1:
        pytest.skip("needs two ranks")
    raised = _alarm_while_others_are_late(world, lambda: OBJECTS[name](world))
    assert raised == (world.rank == 0)
    assert world.allgather(world.rank) == list(range(world.size))


@pytest.mark.parametrize("name", ["Dup", "Split", "Clone"])
def test_who_is_called_away_from_a_constructor_is_not_waited_for(
    comm: MPI.Intracomm, name: str
) -> None:
    if comm.size == 1:
        pytest.skip("needs two ranks")
    world = closeranks.init(comm)
    raised = refused = False
    try:
        raised = _alarm_while_others_are_late(comm, getattr(world, name))
    except closeranks.Revoked:
        refused = True
    assert raised == (comm.rank == 0)
    assert refused == (comm.rank > 0)
    with pytest.raises(closeranks.Revoked):
        world.Allreduce(np.ones(1), np.zeros(1))
    world.abandon()
