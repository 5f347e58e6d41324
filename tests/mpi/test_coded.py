"""Coded sums on real ranks: right, with the same bytes on all ranks, and never hanging."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.coded import (
    MSGC,
    SRSGC,
    Backup,
    CodedAllreduce,
    CyclicMDS,
    CyclicRepetition,
    Expander,
    FractionalRepetition,
    GilbertElliott,
    GradientCode,
    PartialRepetition,
    Repetition,
    Scheme,
    Uncoded,
    UnequalShares,
)
from closeranks.errors import CodeError, Disagreement, PeerLate, PeerLost, Revoked, UsageError

World = cr.Communicator
Made = Scheme | GradientCode
FINFO: Any = ml_dtypes.finfo
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(map(np.dtype, ("f2", BFLOAT16, "f4", "f8", "c16", "i8")))

SCHEMES: dict[str, Callable[[int], Made]] = {
    "uncoded": Uncoded,
    "repetition": lambda n: Repetition(n, min(1, n - 1)),
    "repetition all": lambda n: Repetition(n, n - 1),
    "fractional": lambda n: FractionalRepetition(n, n // 2 - 1 if n % 2 == 0 else n - 1),
    "cyclic": lambda n: CyclicRepetition(n, min(1, n - 1)),
    "mds": lambda n: CyclicMDS(n, n - 1 if n < 3 else 2 - (n % 2 == 0)),
    "partial": lambda n: PartialRepetition(n, n - 1, micro=4),
    "partial pairs": lambda n: PartialRepetition(n, min(1, n - 1), micro=2),
    "shares": lambda n: UnequalShares(n, [2.0] * (n - 1) + [1.0]),
    "backup": lambda n: Backup(n, min(1, n - 1)),
    "expander": lambda n: Expander(n, 2) if n > 2 else Uncoded(n),
    "msgc": lambda n: MSGC(n, 1, 2, 1),
    "msgc all": lambda n: MSGC(n, 1, 3, n),
    "msgc cyclic": lambda n: MSGC(n, 1, 2, min(1, n - 1), inner=CyclicRepetition),
    "srsgc": lambda n: SRSGC(n, 1, 2, min(2, n - 1)),
    "srsgc cyclic": lambda n: SRSGC(n, 2, 3, min(2, n - 1), inner=CyclicRepetition),
}


def same_bytes(comm: MPI.Intracomm, sums: list[Any]) -> None:
    """Compare what all ranks have got."""
    digest = hashlib.sha256()
    for one in sums:
        for array in one if isinstance(one, list) else [one]:
            digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    assert len(set(comm.allgather(digest.hexdigest()))) == 1


def arrays(dtype: np.dtype[Any], job: int, number: int) -> list[np.ndarray]:
    """Give a gradient of small whole numbers, which add up without rounding."""
    draw = np.random.default_rng([job, number])
    wide = draw.integers(-3, 4, (6, 10)).astype(dtype)
    frozen = draw.integers(-3, 4, 7).astype(dtype)
    frozen.setflags(write=False)
    mixed = [wide[::2, 1::3], np.array(draw.integers(5), dtype), np.empty((0, 3), dtype), frozen]
    return [*mixed, draw.integers(-3, 4, (2, 2)).astype("f4")]


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_of_rounds_with_late_ranks(comm: MPI.Intracomm, world: World, name: str) -> None:
    made = SCHEMES[name](comm.size)
    rounds, draw = 5, np.random.default_rng([comm.rank, 3])
    with CodedAllreduce(world, made) as coded:
        scheme = coded.scheme
        count = scheme.parts + 1
        whole = getattr(scheme, "code", None) is None and scheme.exact
        dtype = np.dtype("i8" if whole else "f8")
        for again in range(2):
            sums = []
            for job in range(rounds):
                late_s = draw.choice([0, 0, 0.001, 0.003]) if again else 0.0

                def part(number: int, job: int = job, late_s: float = late_s) -> Any:
                    time.sleep(late_s)
                    return arrays(dtype, job, number)

                sums.append(coded.step(part, count if again else list(range(count))))
            assert all(one is None for one in sums[: scheme.delay])
            sums = sums[scheme.delay :] + coded.flush()
            assert len(sums) == rounds
            same_bytes(comm, sums)
            if scheme.exact:
                for job, found in enumerate(sums):
                    gradients = [arrays(dtype, job, number) for number in range(count)]
                    for got, terms in zip(found, zip(*gradients, strict=True), strict=True):
                        assert got.dtype == terms[0].dtype
                        np.testing.assert_allclose(got, sum(terms), rtol=0, atol=2e-3)
                        got[...] = 0  # it is the caller's
        told = coded.statistics()
    assert set(told) == {
        "rounds", "late", "abandoned", "moved_bytes", "sent_bytes", "waits", "wait_s"
    }  # fmt: skip
    assert told["rounds"] == coded.statistics()["rounds"] == 2 * (rounds + scheme.delay)
    assert told["late"].shape == told["abandoned"].shape == (comm.size,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_array_of_any_type(comm: MPI.Intracomm, world: World, dtype: np.dtype[Any]) -> None:
    """The array is the same one in each call, and some are of no or one element."""
    n = comm.size
    codes: list[Made] = [Repetition(n, n - 1), PartialRepetition(n, n - 1, micro=2)]
    if dtype.kind != "i":
        codes.append(CyclicRepetition(n, n - 1))
    for made in codes:
        for shape in ((), (0,), (3, 1, 5)):
            with CodedAllreduce(world, made) as coded:
                kept = np.empty(shape, dtype)

                def part(number: int, kept: np.ndarray = kept) -> np.ndarray:
                    kept[...] = number + 1
                    return kept

                count = 3 * coded.scheme.parts
                found = [coded.step(part, count) for _ in range(2)]
                same_bytes(comm, found)
                for one in found:
                    assert (one.dtype, one.shape) == (dtype, shape)
                    assert isinstance(one, np.ndarray)
                    want = np.full(shape, count * (count + 1) // 2)
                    assert_near(one, want, 0.0 if dtype.kind == "i" else 8 * 2.0**-7)


def assert_near(found: np.ndarray, want: np.ndarray, most: float) -> None:
    """Compare, up to a relative error."""
    assert (np.abs(found.astype("c16") - want) <= most * np.abs(want) + 1e-13).all()


@pytest.mark.parametrize("dtype", ["f2", BFLOAT16, "f4", "f8"], ids=str)
def test_grouped_codes_add_the_vectors_of_the_lowest_on_time(
    comm: MPI.Intracomm, world: World, dtype: Any
) -> None:
    """In the order of the workers, each in its parts' order; short floats in float32."""
    n, wide = comm.size, np.dtype("f4") if np.dtype(dtype).itemsize == 2 else np.dtype(dtype)
    if n < 2:
        pytest.skip("nobody is late")
    for code in (Repetition(n, n - 1), Repetition(n, 1), SCHEMES["fractional"](n)):
        assert isinstance(code, GradientCode)
        if getattr(code, "s", 0) < 1:
            continue
        with CodedAllreduce(world, code) as coded:
            count = 2 * code.parts
            for late in range(min(n, 3)):
                draw = np.random.default_rng(late)
                data = draw.standard_normal((count, 33)).astype(dtype)
                gate = pause_of(comm, late)

                def part(number: int, data: Any = data, gate: Any = gate) -> Any:
                    gate()
                    return data[number]

                found = coded.step(part, count)
                vectors = []
                weights = code.decode(set(range(n)) - {late})
                for worker in np.flatnonzero(weights).tolist():
                    first = [p * count // code.parts for p in range(code.parts + 1)]
                    numbers = [
                        number
                        for p in code.assignment(worker)
                        for number in range(first[p], first[p + 1])
                    ]
                    total = data[numbers[0]].astype(wide)
                    for number in numbers[1:]:
                        total += data[number]
                    vectors.append(total)
                want = vectors[0].copy()
                for vector in vectors[1:]:
                    want += vector
                assert found.tobytes() == want.astype(dtype).tobytes()
                same_bytes(comm, [found])
                comm.Barrier()


@pytest.mark.parametrize("dtype", ["f2", BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["uncoded", "repetition", "partial", "cyclic"])
def test_short_floats_are_rounded_once(
    comm: MPI.Intracomm, world: World, dtype: Any, name: str
) -> None:
    """A rank adds so many micro-batches that a sum of short floats would stand still."""
    n, tenth = comm.size, np.array(0.1, dtype)
    for micro in (1024 * n, 4096 * n + 3):
        with CodedAllreduce(world, SCHEMES[name](n), max_noise=1e9) as coded:
            mixed = [np.full(3, tenth), np.full(2, tenth, "f4"), tenth]
            found = coded.step(partial(give, mixed), micro)
            assert [one.dtype for one in found] == [one.dtype for one in mixed]
            for one in found:
                want = np.full(one.shape, micro * float(tenth))
                assert_near(one, want, float(FINFO(dtype).eps))
            same_bytes(comm, [found])


def give(gradient: Any, _number: int) -> Any:
    """Give the same gradient always."""
    return gradient


def pause_of(comm: MPI.Intracomm, late: int) -> Callable[[], None]:
    """Let one rank compute slowly; the others end long before it ends a micro-batch."""
    pause_s = 0.05 if comm.rank == late else 0.0
    return partial(time.sleep, pause_s)


@pytest.mark.parametrize("dtype", ["f2", BFLOAT16, "f4", "f8"], ids=str)
def test_other_codes_are_within_their_noise(comm: MPI.Intracomm, world: World, dtype: Any) -> None:
    n, eps = comm.size, float(FINFO(dtype).eps)
    draw = np.random.default_rng(1)
    for code in (CyclicRepetition(n, min(1, n - 1)), SCHEMES["mds"](n)):
        assert isinstance(code, GradientCode)
        with CodedAllreduce(world, code, max_noise=1e9) as coded:
            for late in range(2):
                data = draw.standard_normal((code.parts, 50)).astype(dtype)
                gate = pause_of(comm, late if n > 1 else -1)

                def part(number: int, data: Any = data, gate: Any = gate) -> Any:
                    gate()
                    return data[number]

                found = coded.step(part, code.parts)
                exact = data.astype("f8").sum(0)
                gain = max(
                    code.noise_gain(set(range(n)) - lost)
                    for lost in ({late}, set[int]())
                    if code.decodable(set(range(n)) - lost)
                )
                # The weights have rounding errors of their own.
                bound = 4 * gain * eps * (code.parts + 1) * np.abs(data.astype("f8")).max()
                assert (np.abs(found.astype("f8") - exact) <= bound).all()
                same_bytes(comm, [found])


@pytest.mark.parametrize("name", ["repetition", "partial", "cyclic", "backup"])
def test_ranks_on_time_are_back_before_a_late_one_has_computed(
    comm: MPI.Intracomm, world: World, name: str
) -> None:
    if comm.size < 2:
        pytest.skip("nobody waits")
    ended, late = [0.0], comm.size - 1
    with CodedAllreduce(world, SCHEMES[name](comm.size)) as coded:
        count = coded.scheme.parts

        def part(number: int) -> np.ndarray:
            if coded.round == 1:  # the others let it begin
                time.sleep(0.15 if comm.rank == late else 0.01)
            if comm.rank == late and coded.round == 1:
                ended[0] = time.monotonic()
            return np.full(4, number, "f8")

        coded.step(part, count)
        comm.Barrier()
        found = coded.step(part, count)
        back = comm.allgather(time.monotonic())
        same_bytes(comm, [found])
        last = comm.bcast(ended[0], late)
        assert max(back[:late]) < last <= back[late]
        told = coded.statistics()
    assert told["late"][late] >= 1 or name == "partial"  # it was helped, perhaps


def test_two_of_one_communicator_and_of_a_derived_one(comm: MPI.Intracomm, world: World) -> None:
    draw = np.random.default_rng(comm.rank)
    with world.Split(comm.rank % 2, -comm.rank) as half:
        size = half.size
        with (
            CodedAllreduce(world, Repetition(comm.size, comm.size - 1)) as one,
            CodedAllreduce(world, PartialRepetition(comm.size, comm.size - 1, micro=3)) as two,
            CodedAllreduce(half, CyclicRepetition(size, size - 1)) as three,
        ):
            for turn in range(6):
                for coded in (one, two, three):
                    late_s = draw.choice([0, 0.002])

                    def part(number: int, late_s: float = late_s, turn: int = turn) -> np.ndarray:
                        time.sleep(late_s)
                        return np.full(5, number * turn + 1.0)

                    count = coded.scheme.parts
                    want = turn * count * (count - 1) / 2 + count
                    np.testing.assert_allclose(coded.step(part, count), want, rtol=1e-9)


def test_a_rank_may_be_some_rounds_behind(comm: MPI.Intracomm, world: World) -> None:
    if comm.size < 2:
        pytest.skip("nobody is behind")
    with CodedAllreduce(world, Repetition(comm.size, 1), ahead=2) as coded:
        count = 2 * coded.scheme.parts
        waits = []
        for turn in range(5):

            def part(number: int, turn: int = turn) -> np.ndarray:
                if turn == 1:  # the others let rank 0 begin
                    time.sleep(0.2 if comm.rank == 0 else 0.01)
                return np.full(3, number + turn)

            found = coded.step(part, count)
            assert (found == count * (count - 1) // 2 + count * turn).all()
            waits.append(coded.statistics()["waits"])
            if turn == 0:
                comm.Barrier()
        last = coded.statistics()
    if comm.rank:
        assert waits == [0, 0, 0, 0, 1]  # in the fifth round: rank 0 is in the second still
        assert last["wait_s"] > 0.05
    else:
        assert waits[-1] == 0


def test_sums_that_rounding_errors_would_drown(comm: MPI.Intracomm, world: World) -> None:
    n = comm.size
    code = CyclicRepetition(n, min(1, n - 1))
    least = code.noise_gain(range(n))
    coded = CodedAllreduce(world, code, max_noise=least / 2)
    with pytest.raises(CodeError, match="rounding errors"):
        coded.step(lambda _number: np.ones(3, "f2"), code.parts)
    with pytest.raises(Revoked):
        coded.step(lambda _number: np.ones(3, "f2"), code.parts)
    coded.close()
    with CodedAllreduce(world, code, max_noise=least * 1.01) as coded:
        assert_near(coded.step(lambda _number: np.ones(3), code.parts), np.array(code.parts), 1e-9)


def test_what_comes_too_late(comm: MPI.Intracomm) -> None:
    if comm.size < 2:
        pytest.skip("nobody is late")
    late = comm.size - 1
    world = cr.init(comm, timeout_s=0.2)
    coded = CodedAllreduce(world, Uncoded(comm.size))

    def part(number: int) -> np.ndarray:
        if comm.rank == late and coded.round == 1:
            time.sleep(0.4)
        return np.ones(3)

    coded.step(part, comm.size)
    comm.Barrier()
    with pytest.raises(PeerLate) as caught:
        coded.step(part, comm.size)
    assert caught.value.ranks == (late,)
    with pytest.raises(Revoked):
        coded.step(part, comm.size)
    coded.close()
    comm.Barrier()
    world.abandon()


BAD: dict[str, Callable[[World, int], object]] = {
    "no communicator": lambda _world, n: CodedAllreduce(MPI.COMM_SELF, Uncoded(n)),  # type: ignore[arg-type]
    "no scheme": lambda world, _n: CodedAllreduce(world, 3),  # type: ignore[arg-type]
    "another n": lambda world, n: CodedAllreduce(world, Uncoded(n + 1)),
    "ahead": lambda world, n: CodedAllreduce(world, Uncoded(n), ahead=0),
    "noise": lambda world, n: CodedAllreduce(world, Uncoded(n), max_noise=float("nan")),
    "record": lambda world, n: CodedAllreduce(world, Uncoded(n), record="x"),  # type: ignore[arg-type]
    "n": lambda _world, _n: Repetition(0, 0),
    "s": lambda _world, n: Repetition(n, n),
    "fractional": lambda _world, _n: FractionalRepetition(5, 1),
    "MDS": lambda _world, _n: CyclicMDS(4, 2),
    "MSGC": lambda _world, n: MSGC(n, 2, 2, 1),
    "SRSGC": lambda _world, n: SRSGC(n, 2, 4, 1),
    "lam": lambda _world, n: MSGC(n, 1, 2, n + 1),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments(comm: MPI.Intracomm, world: World, case: str) -> None:
    with pytest.raises(UsageError):
        BAD[case](world, comm.size)
    world.Barrier()


@pytest.mark.parametrize("case", ["parts", "number", "function", "nothing", "scalar", "text"])
def test_wrong_steps(comm: MPI.Intracomm, world: World, case: str) -> None:
    """Each rank raises, and can go on with another one."""
    n, function = comm.size, lambda _number: np.ones(3)
    words: dict[str, tuple[Any, Any]] = {
        "parts": (function, list(range(n - 1))),
        "number": (function, -1),
        "function": (None, n),
        "nothing": (function, None),
        "scalar": (lambda _number: 1.0, n),
        "text": (lambda _number: np.array(["a"]), n),
    }
    with CodedAllreduce(world, Uncoded(n)) as coded:
        with pytest.raises(UsageError):
            coded.step(*words[case])
        with pytest.raises(Revoked):
            coded.step(function, n)
    with CodedAllreduce(world, Uncoded(n)) as coded:
        assert (coded.step(function, n) == n).all()
    with pytest.raises(UsageError, match="closed"):
        coded.step(function, n)
    with pytest.raises(UsageError, match="closed"):
        coded.flush()
    coded.close()


def test_wrong_on_one_rank_only(comm: MPI.Intracomm, world: World) -> None:
    n, last = comm.size, comm.size - 1
    with pytest.raises(UsageError, match="ahead"):
        CodedAllreduce(world, Uncoded(n), ahead=0 if comm.rank == last else 4)
    if n < 2:
        return
    coded = CodedAllreduce(world, Uncoded(n))
    function = None if comm.rank == last else lambda _number: np.ones(3)
    coded_error: type[Exception] = UsageError if comm.rank == last else PeerLost
    with pytest.raises((coded_error, PeerLost)):
        coded.step(function, n)  # type: ignore[arg-type]
    coded.close()


def test_whole_numbers_take_whole_weights(comm: MPI.Intracomm, world: World) -> None:
    n = comm.size
    for made in (CyclicRepetition(n, n - 1), Backup(n, n - 1)):
        with CodedAllreduce(world, made) as coded, pytest.raises(UsageError, match="fractions"):
            coded.step(lambda _number: np.ones(3, "i8"), n)


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("what", ["shape", "dtype", "list", "scheme"])
def test_unlike_ranks(comm: MPI.Intracomm, checks: bool, what: str) -> None:
    n, is_last = comm.size, comm.rank == comm.size - 1
    if n < 2:
        pytest.skip("they are alike")
    gradients: dict[str, Any] = {
        "shape": np.ones(4), "dtype": np.ones(3, "f4"), "list": [np.ones(3)]
    }  # fmt: skip
    error: type[Exception] = Disagreement if checks else UsageError
    with cr.init(comm, check=checks) as world:
        if what == "scheme":
            with pytest.raises(error):
                CodedAllreduce(world, Repetition(n, n - 1) if is_last else Uncoded(n))
            speeds = [1.0] * n
            speeds[0 if is_last else -1] = 0.5  # as many parts, for other ranks
            with pytest.raises(error):
                CodedAllreduce(world, UnequalShares(n, speeds))
            return
        with CodedAllreduce(world, Uncoded(n)) as coded, pytest.raises(error):
            coded.step(lambda _number: gradients[what] if is_last else np.ones(3), n)


class Stop(BaseException):
    """Like KeyboardInterrupt, which a launch must not see."""


@pytest.mark.parametrize("kind", [ValueError, Stop])
@pytest.mark.parametrize("when", ["before", "first", "later", "flush", "between"])
@pytest.mark.parametrize("name", ["uncoded", "repetition", "partial", "msgc"])
def test_a_rank_raises(
    comm: MPI.Intracomm, world: World, kind: type[BaseException], when: str, name: str
) -> None:
    """The program catches it, and goes on with the communicator."""
    n, breaks = comm.size, comm.size // 2
    if when == "flush" and (name != "msgc" or n == 1):
        pytest.skip("nothing is computed then")
    state = {"on": when == "first"}

    def part(number: int) -> np.ndarray:
        if state["on"] and comm.rank == breaks:
            raise kind("broken here")
        time.sleep(0.001)
        return np.ones(3)

    def run(coded: CodedAllreduce) -> None:
        count = coded.scheme.parts
        if when == "before" and comm.rank == breaks:
            raise kind("broken here")
        for turn in range(8):
            state["on"] |= when == "later" and turn == 2
            if when == "between" and turn == 2 and comm.rank == breaks:
                raise kind("broken here")
            coded.step(part, count)
        state["on"] |= when == "flush"
        coded.flush()

    coded = CodedAllreduce(world, SCHEMES[name](n))
    expected: Any = kind if comm.rank == breaks else PeerLost
    with pytest.raises(expected) as caught, coded:
        run(coded)
    if comm.rank != breaks:
        assert caught.value.ranks == (breaks,)
        assert "broken here" in str(caught.value)
        assert kind.__name__ in str(caught.value)
    assert world.allreduce(1) == n
    with CodedAllreduce(world, SCHEMES[name](n)) as coded:
        state["on"] = False
        coded.step(lambda _number: np.ones(3), coded.scheme.parts)


def test_auto_takes_a_code_where_ranks_are_slow_at_times(comm: MPI.Intracomm, world: World) -> None:
    n = comm.size
    slow = GilbertElliott(0.15, 0.3, 10, seed=3).factors(36, n)[:, comm.rank]
    with CodedAllreduce(world, "auto") as coded:
        for turn in range(36):

            def part(number: int, turn: int = turn) -> Any:
                time.sleep(1e-4 * slow[turn])
                return np.full(4, number + turn)

            found = coded.step(part, 4 * n)
            assert (found == sum(range(4 * n)) + 4 * n * turn).all()
        kinds = set(comm.allgather(type(coded.scheme).__name__))
    assert len(kinds) == 1
    if n < 2:
        assert kinds == {"Uncoded"}


@pytest.mark.parametrize("rounds", [150, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_many_rounds_use_no_more(comm: MPI.Intracomm, world: World, rounds: int) -> None:
    n, process = comm.size, psutil.Process()
    draw = np.random.default_rng(5)
    late, used = draw.integers(0, n, rounds), (0, 0)
    with CodedAllreduce(world, PartialRepetition(n, n - 1, micro=2)) as coded:
        for turn, slowest in enumerate(late):
            pause_s = 0.002 if comm.rank == slowest else 0.0
            pause_s += 0.02 * (turn == 60 and comm.rank == 0)  # some rounds behind

            def part(number: int, turn: int = turn, pause_s: float = pause_s) -> Any:
                time.sleep(pause_s)
                return np.full(2048, 1.0 * number + turn)

            found = coded.step(part, 2 * n)
            assert (found == sum(range(2 * n)) + 2 * n * turn).all()
            now = process.num_fds(), process.memory_info().rss
            used = now if turn == 100 else used
        assert process.num_fds() == used[0]
        assert process.memory_info().rss <= used[1] + (1 << 20)
        assert len(coded._messages._sent) == len(coded._jobs) == 0
