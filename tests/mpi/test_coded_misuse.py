"""Coded sums that are used wrongly: an error on all ranks, and never a hang."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.coded import (
    CodedAllreduce,
    PartialRepetition,
    Recorder,
    Repetition,
    Uncoded,
)
from closeranks.collectives.coded.transport import auto_scheme
from closeranks.collectives.coded.transport.auto_scheme import AutoScheme
from closeranks.errors import Disagreement, PeerLost, UsageError

World = cr.Communicator


def ones(_number: object) -> np.ndarray:
    return np.ones(3)


def steps(coded: CodedAllreduce, part: Callable[[Any], np.ndarray], turns: list[Any]) -> None:
    """Make some steps."""
    for parts in turns:
        coded.step(part, parts)


INSIDE: dict[str, Callable[[CodedAllreduce, int], object]] = {
    "close": lambda coded, _n: coded.close(),
    "step": lambda coded, n: coded.step(ones, n),
    "flush": lambda coded, _n: coded.flush(),
    "leave": lambda coded, _n: coded.__exit__(None, None, None),
}


@pytest.mark.parametrize("case", INSIDE)
@pytest.mark.parametrize("turn", [0, 2])
def test_calls_inside_of_compute_part(
    comm: MPI.Intracomm, world: World, case: str, turn: int
) -> None:
    """The rank that makes one raises; the others hear of it."""
    n, breaks = comm.size, comm.size - 1
    coded = CodedAllreduce(world, Uncoded(n))

    def part(_number: int) -> np.ndarray:
        if comm.rank == breaks and coded.round == turn:
            INSIDE[case](coded, n)
        return np.ones(3)

    error: Any = UsageError if comm.rank == breaks else PeerLost
    with pytest.raises(error, match="a step is under way"), coded:
        steps(coded, part, [n] * 8)
    assert world.allreduce(1) == n
    with CodedAllreduce(world, Uncoded(n)) as again:
        assert (again.step(ones, n) == n).all()


def test_an_error_of_such_a_call_may_be_caught(comm: MPI.Intracomm, world: World) -> None:
    n, caught = comm.size, []
    with CodedAllreduce(world, PartialRepetition(n, n - 1, micro=2)) as coded:

        def part(_number: int) -> np.ndarray:
            for call in INSIDE.values():
                with pytest.raises(UsageError, match="a step is under way"):
                    call(coded, n)
                caught.append(call)
            return np.ones(3)

        for _ in range(3):
            assert (coded.step(part, 2 * n) == 2 * n).all()
    assert caught


@pytest.mark.parametrize("case", INSIDE)
def test_calls_of_a_thread_meanwhile(comm: MPI.Intracomm, world: World, case: str) -> None:
    n, said = comm.size, list[BaseException]()
    with CodedAllreduce(world, Uncoded(n)) as coded:
        computes = threading.Event()

        def part(_number: int) -> np.ndarray:
            computes.set()
            time.sleep(0.05)
            return np.ones(3)

        def other() -> None:
            computes.wait()
            try:
                INSIDE[case](coded, n)
            except UsageError as error:
                said.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        assert (coded.step(part, n) == n).all()
        thread.join()
        assert [str(error).count("a step is under way") for error in said] == [1]
        assert (coded.step(ones, n) == n).all()


def test_an_exception_while_a_thread_computes(comm: MPI.Intracomm, world: World) -> None:
    """The memory stays until the thread's step is over."""
    n, said = comm.size, list[BaseException]()
    coded = CodedAllreduce(world, Uncoded(n))
    coded.step(ones, n)
    computes, left = threading.Event(), threading.Event()

    def part(_number: int) -> np.ndarray:
        computes.set()
        left.wait(20)
        return np.ones(3)

    def other() -> None:
        try:
            coded.step(part, 3 * n)  # it looks after each micro-batch
        except PeerLost as error:
            said.append(error)
        finally:
            computes.set()  # another rank may have left before

    thread = threading.Thread(target=other)

    def leave() -> None:
        thread.start()
        computes.wait()
        raise ValueError("broken here")

    with pytest.raises(ValueError, match="broken here"), coded:
        leave()
    left.set()
    thread.join()
    assert len(said) == 1
    assert "broken here" in str(said[0])
    assert world.allreduce(1) == n


class Interruption(Exception):
    """What the handler of a signal raises."""


@pytest.mark.parametrize("by", ["thread", "signal"])
@pytest.mark.parametrize("pause_s", [0, 0.0002, 0.002, 0.01])
def test_a_rank_that_leaves_while_it_waits_for_the_first_gradients(
    comm: MPI.Intracomm, world: World, by: str, pause_s: float
) -> None:
    """Rank 0 leaves when the last rank may have come, or not: nobody waits for ever."""
    n, said = comm.size, list[BaseException]()
    if n == 1:
        pytest.skip("there is nobody to wait for")
    coming = comm.Dup()

    def part(number: int) -> np.ndarray:
        if number == n - 1:
            coming.Recv(bytearray(1), 0)
            time.sleep(pause_s)
        return np.ones(3)

    def steps() -> None:
        for compute in (part, ones):
            coded.step(compute, n)

    def come() -> None:
        coming.Send(b"1", n - 1)
        time.sleep(0.001)

    def interrupt(*_: object) -> None:
        come()
        raise Interruption

    def of_a_thread() -> None:
        try:
            steps()
        except PeerLost as error:
            said.append(error)

    def leave() -> None:
        thread.start()
        time.sleep(0.05)
        interrupt()

    does, thread = steps, threading.Thread(target=of_a_thread)
    before = signal.signal(signal.SIGALRM, interrupt)
    coded = CodedAllreduce(world, Uncoded(n))
    if comm.rank == 0 and by == "thread":
        does = leave
    elif comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises((Interruption, PeerLost)), coded:
        does()
    signal.signal(signal.SIGALRM, before)
    if does is leave:
        thread.join()
        assert "Interruption" in str(said[0])
    coming.Free()
    assert world.allreduce(1) == n


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a __del__
@pytest.mark.parametrize("pause_s", [0, 0.0001, 0.0003, 0.0006, 0.001])
@pytest.mark.parametrize("scheme", ["repetition", "auto"])
def test_a_signal_at_any_time_of_the_first_round(
    comm: MPI.Intracomm, world: World, scheme: str, pause_s: float
) -> None:
    """Its handler raises on rank 0; the next call meets no other one."""
    n = comm.size

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    for turn in range(20):
        said = "nothing"
        chosen = "auto" if scheme == "auto" else Repetition(n, n > 1)
        coded = CodedAllreduce(world, chosen)
        if scheme == "auto":
            for _ in range(31):
                coded.step(ones, n)
        try:
            with coded:
                if comm.rank == 0:
                    signal.setitimer(signal.ITIMER_REAL, pause_s + 1e-5 * turn + 1e-6)
                for _ in range(3):
                    coded.step(ones, 2 * n)
                time.sleep(0.002)
        except (Interruption, PeerLost) as error:
            said = type(error).__name__
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        told = world.allgather(said)
        assert told[0] in ("Interruption", "nothing"), told
        assert set(told[1:]) <= {"PeerLost", "nothing"}, told
    signal.signal(signal.SIGALRM, before)


class Odd:
    """A data set that raises when it is asked for something."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __len__(self) -> int:
        if self._what == "len":
            raise OSError("the disk is away")
        return 64

    def __getitem__(self, number: int) -> int:
        if self._what == "item":
            raise OSError("the disk is away")
        return number


PARTS: dict[str, tuple[Any, type[BaseException]]] = {
    "length raises": (Odd("len"), OSError),
    "item raises": (Odd("item"), OSError),
    "number of no axes": (np.array(1.5), UsageError),
    "dict": (dict.fromkeys(range(64), 1.0), UsageError),
    "huge": (1 << 80, OverflowError),
    "text": (np.array("a"), UsageError),
}


@pytest.mark.parametrize("case", PARTS)
@pytest.mark.parametrize("turn", [0, 2])
def test_parts_that_one_rank_cannot_read(
    comm: MPI.Intracomm, world: World, case: str, turn: int
) -> None:
    n, breaks = comm.size, comm.size // 2
    given, kind = PARTS[case]
    error: Any = kind if comm.rank == breaks else PeerLost
    turns: list[Any] = [list(range(64)) for _ in range(8)]
    if comm.rank == breaks:
        turns[turn] = given
    coded = CodedAllreduce(world, Uncoded(n))  # which nobody closes meanwhile
    with pytest.raises(error) as caught:
        steps(coded, ones, turns)
    if comm.rank != breaks:
        assert caught.value.ranks == (breaks,)
        assert kind.__name__ in str(caught.value)
    assert world.allreduce(1) == n
    coded.close()


def test_numbers_of_other_types(comm: MPI.Intracomm, world: World) -> None:
    n = comm.size
    with CodedAllreduce(world, Uncoded(n), ahead=np.int64(4)) as coded:  # type: ignore[arg-type]
        for count in (np.array(2 * n), np.int32(2 * n), np.uint8(2 * n)):
            for _ in range(6):
                assert (coded.step(ones, count) == 2 * n).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("checks", [False, True])
def test_auto_on_one_rank_only(comm: MPI.Intracomm, checks: bool) -> None:
    n = comm.size
    if n < 2:
        pytest.skip("they are alike")
    with cr.init(comm, check=checks) as world:
        with pytest.raises(Disagreement if checks else UsageError):
            CodedAllreduce(world, Uncoded(n) if comm.rank else "auto")
        with CodedAllreduce(world, "auto") as coded:
            assert (coded.step(ones, n) == n).all()


@pytest.mark.parametrize("made", [PartialRepetition, Uncoded])
def test_auto_takes_small_batches_too(
    comm: MPI.Intracomm, world: World, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was chosen: the last batch of an epoch is smaller."""
    n = comm.size
    best = PartialRepetition(n, n - 1, 8) if made is PartialRepetition else Uncoded(n)
    monkeypatch.setattr(auto_scheme, "tune", lambda *_, **__: best)
    draw = np.random.default_rng(7)
    with CodedAllreduce(world, "auto") as coded:
        for turn in range(120):
            count = int(draw.choice([8 * n, 8 * n, 3 * n, 2 * n + 1, n]))
            pause_s = 0.001 * (draw.integers(n) == comm.rank)

            def part(number: int, turn: int = turn, pause_s: float = pause_s) -> np.ndarray:
                time.sleep(pause_s)
                return np.full(3, number + turn)

            found = coded.step(part, count)
            assert (found == sum(range(count)) + count * turn).all()
            if turn > 32 and count == 8 * n:
                assert type(coded.scheme) is type(best)
        comm.Barrier()
        with pytest.raises((UsageError, PeerLost)):
            coded.step(ones, n - 1)


def test_what_is_chosen_fits(world: World) -> None:
    auto = AutoScheme(world)
    n = world.size
    assert auto.fitting(n).parts == n
    auto._chosen = PartialRepetition(n, n - 1, 8)
    assert auto.fitting(8 * n) is auto.fitting(8 * n)
    for count in range(1, 10 * n):
        assert auto.fitting(count).parts <= max(count, n)
    assert auto.fitting(100 * n) is auto._chosen


BAD_PATHS: dict[str, Any] = {
    "empty": "", "root": "/", "none": None, "number": 3, "bytes": b"run.trace"
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PATHS)
def test_a_recorder_of_no_file(world: World, case: str) -> None:
    with pytest.raises(UsageError):
        Recorder(world, BAD_PATHS[case])
    world.Barrier()


def test_a_round_is_recorded_once(world: World, tmp_path: Path) -> None:
    path = world.bcast(tmp_path / "run.trace")
    with Recorder(world, path) as recorder:
        for _ in range(8):
            with recorder.compute(), pytest.raises(UsageError, match="being recorded"):
                recorder.compute().__enter__()
        assert recorder.rounds == 8
