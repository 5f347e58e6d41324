"""The engine: who waits how long, who hears of what, who drives it meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine import progress_engine as driving
from closeranks.collectives.engine.bound_plan import Bound
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.progress_answer import Patience
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms import wait as waiting
from closeranks.errors import PeerLate, Revoked, Unavailable
from tests.collectives.shape.ring import ring
from tests.mpi.ground import bind, opened, rounds, run, start, toy

Steps = Generator[None, None, None]


def credit(out: Schedule, _: Problem) -> Steps:
    """Wait for event 0, then copy."""
    out.copy(Block(INPUT, 0, 4), Block(OUTPUT, 0, 4), (out.event(0),))
    yield


class Gate:
    """An event that opens when told to."""

    def __init__(self) -> None:
        self.is_open = False

    def __call__(self) -> bool:
        return self.is_open


def gated(world: World, **options: Any) -> tuple[Bound, Gate, np.ndarray]:
    event, output = Gate(), np.zeros(4, "f4")
    data = np.arange(4, dtype="f4")
    bound = bind(toy(world.size, credit), world, data, output, events=[event], **options)
    return bound, event, output


def test_one_engine_a_process(comm: MPI.Intracomm) -> None:
    assert engine() is engine()
    assert comm.size
    assert engine().in_flight == ()


def test_a_wait_that_expires_leaves_the_operation_going(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound, event, output = gated(world)
        execution = start(bound)
        with pytest.raises(TimeoutError, match=r"allreduce: not finished after 0\.02 s"):
            engine().wait(execution, timeout_s=0.02)
        assert not execution.finished
        assert engine().in_flight == (execution,)
        assert not engine().test(execution)
        event.is_open = True
        engine().wait(execution, timeout_s=20)
        assert output.tolist() == [0, 1, 2, 3]
        assert bound.busy is False
        assert not world.revoked


def test_late_ranks_are_named_and_the_world_is_dead(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    late = comm.size - 1
    with opened(comm) as world:
        bound = bind(ring(comm.size, 64), world, np.ones(64, "f4"), np.zeros(64, "f4"))
        comm.Barrier()
        if comm.rank == late:
            while not world.revoked:  # here by the abort word: we are on its node
                time.sleep(0.01)
            with pytest.raises(Revoked):
                start(bound)
            return
        began = time.monotonic()
        with pytest.raises(PeerLate) as caught:
            engine().wait(start(bound, limit_s=0.3))
        assert time.monotonic() - began < 1.3
        assert caught.value.limit_s == 0.3
        assert caught.value.waited_s >= 0.3
        assert caught.value.operation == "allreduce"
        assert caught.value.ranks == (late,)
        assert f"waiting for rank {(comm.rank - 1) % comm.size}" in caught.value.phase
        assert world.revoked
        assert not engine().in_flight
        with pytest.raises(Revoked):
            start(bound)
        assert not engine().in_flight


def test_nobody_is_accused_where_all_have_arrived(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound, _, _ = gated(world)
        comm.Barrier()
        with pytest.raises(PeerLate) as caught:
            engine().wait(start(bound, limit_s=0.5))
        assert caught.value.ranks == ()
        assert "not ended after" in str(caught.value)


def test_what_needs_a_thread_says_so(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(comm) as world:
        bound, event, _ = gated(world)
        event.is_open = True
        with monkeypatch.context() as patch:
            patch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
            with pytest.raises(Unavailable, match="THREAD_MULTIPLE"):
                start(bound, background=True)
        assert not engine().in_flight
        run(bound)


def test_the_thread_stays_for_what_comes_next(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sys.getswitchinterval()
    with opened(comm) as world:
        seen = []
        for _ in range(2):
            bound, event, output = gated(world)
            execution = start(bound, background=True)
            event.is_open = True
            while not execution.drained:
                time.sleep(0.001)
            assert output.tolist() == [0, 1, 2, 3]
            seen.append(engine()._thread)
            assert sys.getswitchinterval() < before
        assert seen[0] is seen[1] is not None
    monkeypatch.setattr(driving, "_STAYING_S", 0.01)
    engine().stop()
    deadline = time.monotonic() + 20
    while engine()._thread is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine()._thread is None
    assert sys.getswitchinterval() == before


def test_a_busy_engine_still_looks_at_deadlines(comm: MPI.Intracomm) -> None:
    with opened(comm) as world, opened(comm, 1) as other:
        bound, _, _ = gated(world)
        stuck = start(bound, limit_s=0.2)
        busy = bind(ring(comm.size, 9), other, np.ones(9, "f4"), np.zeros(9, "f4"))
        started, done = time.monotonic(), False
        while not done and time.monotonic() - started < 20:
            run(busy)
            done = bool(comm.allreduce(int(stuck.error is not None), MPI.MIN))
        assert isinstance(stuck.error, PeerLate | Revoked)


def test_giving_up_on_one_rank_ends_the_waits_of_the_others(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound, _, _ = gated(world)
        execution = start(bound)
        comm.Barrier()
        if comm.rank == 0:
            world.revoke()
        began = time.monotonic()
        with pytest.raises(Revoked):
            engine().wait(execution)
        assert time.monotonic() - began < 5
        rounds(100)
        assert execution.drained
        comm.Barrier()


def test_a_dead_world_leaves_others_alone(comm: MPI.Intracomm) -> None:
    with opened(comm) as world, opened(comm, 1) as other:
        bound, _, _ = gated(world)
        execution = start(bound)
        comm.Barrier()
        world.revoke()
        with pytest.raises(Revoked):
            engine().wait(execution)
        output = np.zeros(9, "f4")
        run(bind(ring(comm.size, 9), other, np.ones(9, "f4"), output))
        assert output.tolist() == [comm.size] * 9


def test_everything_in_flight_advances_whoever_waits(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        outputs = [np.zeros(n, "f4") for n in (5, 500, 50_000)]
        flights = [
            start(bind(ring(comm.size, len(out)), world, np.ones(len(out), "f4"), out))
            for out in outputs
        ]
        engine().wait(flights[-1])
        for flight in flights:
            engine().wait(flight)
        for output in outputs:
            assert (output == comm.size).all()


def test_higher_priority_advances_first(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        low, high, middle = (gated(world)[0] for _ in range(3))
        flights = [start(low), start(high, priority=5), start(middle, priority=3)]
        assert engine().in_flight == (flights[1], flights[2], flights[0])
        for flight in flights:
            flight.bound.events[0].is_open = True  # type: ignore[attr-defined]
            engine().wait(flight)


def test_the_end_is_told_once(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound, event, _ = gated(world)
        execution = start(bound)
        told: list[Execution] = []
        execution.when_finished(told.append)
        engine().progress()
        assert told == []
        event.is_open = True
        engine().wait(execution)
        assert told == [execution]
        execution.when_finished(told.append)
        assert told == [execution] * 2


def test_the_epilogue_runs_before_anybody_is_told(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        seen: list[str] = []
        bound, event, output = gated(world, epilogue=lambda: seen.append("epilogue"))
        execution = start(bound)
        execution.when_finished(lambda done: seen.append(f"told {done.finished}"))
        event.is_open = True
        engine().wait(execution)
        assert seen == ["epilogue", "told True"]
        assert output.tolist() == [0, 1, 2, 3]


def test_nobody_needs_to_call_for_what_runs_in_the_background(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        output = np.zeros(999, "f4")
        bound = bind(ring(comm.size, 999), world, np.ones(999, "f4"), output)
        gate_bound, event, _ = gated(world)
        execution = start(bound, background=True)
        held = start(gate_bound, background=True)
        request = MPI.Grequest.Start()
        execution.when_finished(lambda _: request.Complete())
        MPI.Request.Waitall([request])  # a plain MPI call: the thread completes it
        assert (output == comm.size).all()
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("closeranks") == 1
        event.is_open = True
        engine().wait(held)
    limit = time.monotonic() + 5
    while any(thread.name == "closeranks" for thread in threading.enumerate()):
        assert time.monotonic() < limit, "the thread outlives its work"
        time.sleep(0.01)


class _Alarm(BaseException):
    pass


def _interrupt(patch: pytest.MonkeyPatch) -> None:
    """Let the next waits of this thread be interrupted, as by the handler of a signal."""
    real = waiting.wait

    def wait(ready: Callable[[], bool], **options: Any) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise _Alarm
        return real(ready, **options)

    patch.setattr(driving, "wait", wait)


def test_what_is_interrupted_goes_on_without_its_caller(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(comm) as world:
        bound, event, output = gated(world)
        execution = start(bound)
        with monkeypatch.context() as patch:
            _interrupt(patch)
            for _ in range(2):
                with pytest.raises(_Alarm):
                    engine().wait(execution)
        event.is_open = True
        limit = time.monotonic() + 10
        while not execution.drained:
            assert time.monotonic() < limit, "nobody drives it"
            time.sleep(0.001)
        assert output.tolist() == [0, 1, 2, 3]
        assert not world.revoked


def test_what_is_interrupted_and_cannot_go_on_alone_is_given_up(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size > 1:  # who comes second has heard of the first
        return
    with opened(comm) as world:
        execution = start(gated(world)[0])
        with monkeypatch.context() as patch:
            patch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
            _interrupt(patch)
            with pytest.raises(_Alarm):
                engine().wait(execution)
        assert world.revoked
        assert isinstance(execution.error, Revoked)


def test_the_others_hear_at_once_of_what_ends_a_step(comm: MPI.Intracomm) -> None:
    def fail() -> bool:
        raise _Alarm

    if comm.size > 1:
        return
    with opened(comm) as world:
        bound = gated(world)[0]
        bound.events = (fail,)
        with pytest.raises(_Alarm):
            start(bound)
        assert world.revoked
        assert not engine().in_flight


def test_who_has_met_an_error_is_refused_the_next_call_like_the_others(
    comm: MPI.Intracomm,
) -> None:
    def fail() -> bool:
        raise ZeroDivisionError

    if comm.size > 1:
        return
    with opened(comm) as world:
        bound = gated(world)[0]
        bound.events = (fail,)
        with pytest.raises(ZeroDivisionError):
            engine().wait(start(bound))
        assert world.attendance.told


def test_any_thread_may_wait(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        outputs = [np.zeros(77, "f4") for _ in range(3)]
        flights = [
            start(bind(ring(comm.size, 77), world, np.ones(77, "f4"), out)) for out in outputs
        ]
        threads = [threading.Thread(target=engine().wait, args=(flight,)) for flight in flights]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        for output in outputs:
            assert (output == comm.size).all()


def test_a_callback_may_start_the_next(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        output = np.zeros(6, "f4")
        bound = bind(ring(comm.size, 6), world, np.ones(6, "f4"), output)
        gate_bound, event, _ = gated(world)
        execution = start(gate_bound)
        following: list[Execution] = []
        execution.when_finished(lambda _: following.append(start(bound)))
        event.is_open = True
        engine().wait(execution)
        engine().wait(following[0])
        assert (output == comm.size).all()


def test_two_executions_of_one_bound_plan_are_refused(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        bound, event, _ = gated(world)
        execution = start(bound)
        with pytest.raises(AssertionError, match="one execution at a time"):
            Execution(bound, Identity(0, world.sequence()))
        event.is_open = True
        engine().wait(execution)


def test_the_thread_stays_with_one_of_several_for_a_part_of_their_wait(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Patience | None] = []
    with opened(comm) as world:
        gates = [gated(world) for _ in range(2)]
        flying = [start(bound) for bound, _, _ in gates]
        monkeypatch.setattr(
            Execution, "advance", lambda _self, patience=None: seen.append(patience)
        )
        driving, still_ns = engine()._driving, 8_000_000
        monkeypatch.setattr(engine(), "_moved_ns", 0)
        monkeypatch.setattr(time, "monotonic_ns", lambda: still_ns)
        with engine().lock:  # a round does nothing while another thread has it
            engine().progress(driving)
            still_ns = 800_000_000
            engine().progress(driving)
            engine().progress(driving._replace(total_ns=7))
        assert [one and one.total_ns for one in seen] == [
            2_000_000, None, 5_000_000, None, None, None
        ]  # fmt: skip
        monkeypatch.undo()
        for (_, event, _), execution in zip(gates, flying, strict=True):
            event.is_open = True
            engine().wait(execution)


@pytest.mark.parametrize("what", ["start", "end_revoked", "end", "leave"])
def test_who_waits_with_the_lock_is_asked_for_it(comm: MPI.Intracomm, what: str) -> None:
    """In compiled code it would stay, and a recovery would wait for it."""
    if comm.size > 1:
        return
    with opened(comm) as world:
        bound, event, _ = gated(world)
        event.is_open = True
        calls: dict[str, Callable[[], object]] = {
            "start": lambda: start(bound),
            "end_revoked": engine().end_revoked,
            "end": lambda: engine().end(world),
            "leave": lambda: engine().leave(execution),
        }
        if what == "leave":
            execution = start(bound)
        thread = threading.Thread(target=calls[what])
        with engine().lock:
            engine()._wanted[0] = 0
            thread.start()
            until = time.monotonic() + 10
            while not engine()._wanted[0]:
                assert time.monotonic() < until, "nobody asks"
                time.sleep(0.001)
        thread.join(20)
        assert not thread.is_alive()
        engine().progress()
        assert engine()._wanted[0] == 0


def test_who_is_interrupted_takes_no_lock_along(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lock:
        """Is taken, and the handler comes before anybody knows."""

        def acquire(self, blocking: bool = True) -> bool:
            taken = lock.acquire(blocking)
            if threading.current_thread() is threading.main_thread():
                raise _Alarm
            return taken

        def release(self) -> None:
            lock.release()

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    assert comm.size
    free: list[bool] = []

    def look() -> None:
        free.append(lock.acquire(timeout=5))
        if free[0]:
            lock.release()

    lock = engine().lock
    with monkeypatch.context() as patch:
        patch.setattr(engine(), "lock", Lock())
        with pytest.raises(_Alarm):
            engine().progress()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert free == [True]
