"""The short way into node memory: right, counted, in step with the engine's way."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.arguments.call_key import Agreed, size_class
from closeranks.collectives.engine import interpreter
from closeranks.collectives.fastpath.shm_call import OPERATIONS
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.choice import Choice
from closeranks.collectives.selection.chooser import ENDLESS, Answer
from closeranks.collectives.shm.segment import NodeMemory
from closeranks.comms.shm.shared_file import share
from closeranks.errors import Unavailable
from tests.mpi.test_short_way import arguments, result

World = cr.Communicator
METHODS = sorted(name.capitalize() for name in OPERATIONS)


@pytest.fixture
def known(world: World | None) -> Iterator[World | None]:
    """A duplicate whose calls go into node memory, known from the start."""
    if world is None:
        yield None
        return
    duplicate = knowing(world)
    yield duplicate
    duplicate.Free()


def knowing(world: World) -> World:
    """Make a duplicate that knows a call of each operation."""
    duplicate = world.Dup()
    service = duplicate._service
    service.chooser.forced.update((name, "shared") for name in OPERATIONS if world.size > 1)
    for method in METHODS if world.size > 1 else ():
        name = method.lower()
        given = arguments(duplicate, method)
        root = (0,) if method in ("Bcast", "Reduce") else ()
        op = (MPI.SUM,) if "reduce" in name else ()
        demand = service.arguments.read(name, "", "auto", (*given, *op, *root))
        interpreter.prepare(service.world, together=True)
        service.learning.remember(demand, "shared")
    return duplicate


def near_calls(world: World) -> int:
    """Count the calls that took the short way."""
    return sum(world._service.shortcuts.calls().get((m.lower(), "shared"), 0) for m in METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_it_does_what_the_library_does(known: World, method: str) -> None:
    for _ in range(5):
        ours, theirs = arguments(known, method), arguments(known, method)
        getattr(known, method)(*ours)
        getattr(MPI.Intracomm, method)(known, *theirs)
        assert result(ours) == result(theirs)
    if known.size > 1:
        assert known.statistics().algorithms == {method.lower(): {"shared": 5}}
        assert near_calls(known) == 5


@pytest.mark.parametrize("algorithm", ["shared", "native"])
@pytest.mark.parametrize("method", METHODS)
def test_who_asks_for_it_gets_it_quickly(world: World, method: str, algorithm: str) -> None:
    if world.size == 1:
        return
    with world.Dup() as comm:
        interpreter.prepare(comm._service.world, together=True)
        for _ in range(3):
            ours, theirs = arguments(comm, method), arguments(comm, method)
            getattr(comm, method)(*ours, algorithm=algorithm)
            getattr(MPI.Intracomm, method)(comm, *theirs)
            assert result(ours) == result(theirs)
        name = method.lower()
        assert comm.statistics().algorithms == {name: {algorithm: 3}}
        assert comm._service.shortcuts.calls() == {(name, algorithm): 2}, "all but the first"
        assert not comm._service.shortcuts.probes, "others are chosen for as before"


@pytest.mark.parametrize("method", METHODS)
def test_gaps_on_one_rank_meet_the_others(known: World, method: str) -> None:
    if known.size == 1:
        return
    ours = arguments(known, method, step=2 if known.rank == 0 else 1)
    theirs = arguments(known, method)
    getattr(known, method)(*ours, algorithm="shared" if known.rank == 0 else "auto")
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)


@pytest.mark.parametrize("method", [one for one in METHODS if one != "Barrier"])
@pytest.mark.parametrize("counted", [False, True])
def test_messages_with_a_plain_type_take_it(known: World, method: str, counted: bool) -> None:
    if known.size == 1:
        return
    size = known.size
    blocks = {"Allgather": (1, size), "Alltoall": (size, size), "Reduce_scatter_block": (size, 1)}
    ours, theirs = arguments(known, method), arguments(known, method)
    plain = MPI.LONG
    specs: list[Any] = [
        one if one is None else [one, one.size // count, plain] if counted else (one, plain)
        for one, count in zip(ours, blocks.get(method, (1, 1)), strict=False)
    ]
    getattr(known, method)(*specs)
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert near_calls(known) == 1


def test_a_message_with_a_plain_type_teaches_it(world: World) -> None:
    if world.size == 1:
        return
    with world.Dup() as comm:
        settle(comm, KIND, SHARED)
        x, y = np.full(100, comm.rank + 1.0), np.zeros(100)
        for _ in range(3):
            comm.Allreduce([x, MPI.DOUBLE], [y, MPI.DOUBLE])
            assert (y == sum(range(comm.size + 1))).all()
        assert near_calls(comm) == 2, "all but the first"


def test_messages_counted_in_another_type_do_not_take_it(known: World) -> None:
    if known.size == 1:
        return
    given, taken = arguments(known, "Allreduce")
    known.Allreduce(given, taken)
    bits, theirs = np.ones_like(given), np.zeros_like(taken)
    before = near_calls(known)
    known.Allreduce([bits, MPI.DOUBLE], [taken, MPI.DOUBLE])
    MPI.Intracomm.Allreduce(known, [bits, MPI.DOUBLE], [theirs, MPI.DOUBLE])
    assert taken.tobytes() == theirs.tobytes()
    assert near_calls(known) == before


def test_kinds_of_one_size_are_told_apart(known: World) -> None:
    """Types, ops and places: the first call of a kind is learnt, the second one is quick."""
    if known.size == 1:
        return
    for dtype, op in [("i8", MPI.SUM), ("f8", MPI.SUM), ("f8", MPI.MAX), ("u8", MPI.BXOR)]:
        x = (np.arange(50) * (known.rank + 2)).astype(dtype)
        for turn in range(3):
            y, z, place, before = (
                np.zeros(50, dtype),
                np.zeros(50, dtype),
                x.copy(),
                near_calls(known),
            )
            known.Allreduce(x, y, op)
            known.Allreduce(MPI.IN_PLACE, place, op=op)
            MPI.Intracomm.Allreduce(known, x, z, op)
            assert y.tolist() == z.tolist() == place.tolist()
            assert near_calls(known) - before == (2 if turn else 1)
    before = near_calls(known)
    wanted = sum(range(2, known.size + 2))
    for odd in (x[::-1][::-1], [x, MPI.UINT64_T], memoryview(x)):  # type: ignore[arg-type]
        known.Allreduce(odd, y)
        assert y.tolist() == [wanted * place for place in range(50)]
    assert near_calls(known) - before <= 1
    frozen = np.zeros(50, dtype)
    frozen.flags.writeable = False
    with pytest.raises((cr.Error, ValueError, BufferError)):
        known.Allreduce(x, frozen)


@pytest.mark.parametrize("method", ["Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block"])
def test_wrong_sizes_are_errors_after_right_ones(known: World, method: str) -> None:
    if known.size == 1:
        return
    given, taken = arguments(known, method)[:2]
    getattr(known, method)(given, taken)
    short = [(given[:-1], taken), (given, taken[:-1])]
    for wrong in short:
        with pytest.raises((cr.Error, MPI.Exception, ValueError)):
            getattr(known, method)(*wrong)
    getattr(known, method)(given, taken)


@pytest.mark.parametrize("root", [0, 1])
def test_a_reduction_to_any_root_and_in_place(known: World, root: int) -> None:
    if known.size == 1:
        return
    x = np.arange(7.0) * (known.rank + 1)
    wanted = (np.arange(7.0) * sum(range(1, known.size + 1))).tolist()
    for _ in range(3):
        y = np.zeros(7) if known.rank == root else None
        known.Reduce(x, y, root=root)
        assert y is None or y.tolist() == wanted
        z = x.copy()
        known.Reduce(MPI.IN_PLACE if known.rank == root else x, z, MPI.SUM, root)
        assert z.tolist() == (wanted if known.rank == root else x.tolist())


def test_a_method_that_is_held_on_to_is_harmless(world: World) -> None:
    if world is None or world.size == 1:
        return
    duplicate = knowing(world)
    held, pair = duplicate.Allreduce, arguments(duplicate, "Allreduce")
    held(*pair)
    assert near_calls(duplicate) == 1
    with duplicate.using(timeout_s=60):
        held(*pair)
    assert near_calls(duplicate) == 1
    held(*pair)
    assert near_calls(duplicate) == 2
    duplicate.Free()
    with pytest.raises(cr.Revoked):
        held(*pair)


def test_a_mean_is_divided_every_time(known: World) -> None:
    x = np.arange(6.0) * (known.rank + 1)
    for _ in range(3):
        y = np.zeros(6)
        known.Allreduce(x, y, cr.MEAN)
        np.testing.assert_allclose(y, np.arange(6.0) * (known.size + 1) / 2)


def test_both_ways_and_plans_stay_in_step(known: World) -> None:
    if known.size == 1:
        return
    for turn in range(6):
        x, y = np.arange(6) + known.rank + turn, np.zeros(6, int)
        long = np.full(100_000, known.rank, np.int64)
        total = np.zeros_like(long)
        request = known.Iallreduce(long, total, algorithm="shared")
        known.Allreduce(x, y)
        request.Wait()
        z = np.zeros(6, int)
        known.Allreduce(x, z, algorithm="ring")
        assert y.tolist() == z.tolist()
        assert set(total.tolist()) == {sum(range(known.size))}


def test_a_small_node_memory_gets_smaller_copy_buffers(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    room = 1 << 20

    def cramped(node: MPI.Intracomm, nbytes: int, **options: Any) -> Any:
        if nbytes > room:
            raise Unavailable("node memory", "give it more")
        return share(node, nbytes, **options)

    monkeypatch.setattr("closeranks.collectives.shm.segment.share", cramped)
    memory = NodeMemory(comm, 0)
    assert memory.copy_buffer_bytes < 128 * 1024 * comm.size
    memory.close()
    room = 1000
    with pytest.raises(Unavailable):
        NodeMemory(comm, 0)


@pytest.mark.parametrize("dtype", ["f2", "bfloat16", "f4", "f8", "i1", "u8", "F", "?"])
def test_every_kind_of_element(world: World, dtype: str) -> None:
    import ml_dtypes

    if world.size == 1:
        return
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    op = MPI.LOR if dtype == "?" else MPI.SUM
    x = (np.arange(5000) % 3 + world.rank).astype(kind)
    y, z = np.zeros_like(x), np.zeros_like(x)
    world.Allreduce(x, y, op=op, algorithm="shared")
    world.Allreduce(x, z, op=op, algorithm="binomial")
    assert y.tobytes() == z.tobytes()


@pytest.mark.parametrize("n", [5, 3000, 100_000])
def test_in_place(world: World, n: int) -> None:
    if world.size == 1:
        return
    size, rank = world.size, world.rank
    every = [np.arange(n * size, dtype=np.int64) * (other + 1) for other in range(size)]
    total, own = np.sum(every, axis=0), slice(rank * n, (rank + 1) * n)
    how: Any = {"algorithm": "shared"}
    for root in range(size):
        x = every[rank].copy()
        world.Reduce(MPI.IN_PLACE if rank == root else x, x if rank == root else None,
                     root=root, **how)  # fmt: skip
        assert np.array_equal(x, total if rank == root else every[rank])
    x = every[rank].copy()
    world.Allreduce(MPI.IN_PLACE, x, **how)
    assert np.array_equal(x, total)
    x = every[rank].copy()
    world.Reduce_scatter_block(MPI.IN_PLACE, x, **how)
    assert np.array_equal(x[:n], total[own])
    x = np.where(np.arange(n * size) // n == rank, every[rank], -1)
    world.Allgather(MPI.IN_PLACE, x, **how)
    assert np.array_equal(x, np.concatenate([every[k][k * n : (k + 1) * n] for k in range(size)]))
    x = every[rank].copy()
    world.Alltoall(MPI.IN_PLACE, x, **how)
    assert np.array_equal(x, np.concatenate([each[own] for each in every]))


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
@pytest.mark.parametrize("n", [40, 5000, 100_000])
def test_sums_of_half_precision_are_rounded_once(world: World, dtype: str, n: int) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if world.size == 1:
        return
    every = [np.random.default_rng(rank).normal(size=n).astype(kind) for rank in range(world.size)]
    y = np.zeros(n, kind)
    world.Allreduce(every[world.rank], y, algorithm="shared")
    wide = np.array([x.astype(np.float64) for x in every])
    exact, spread = wide.sum(axis=0), np.abs(wide).sum(axis=0)
    ulp = np.spacing(np.abs(y)).astype(np.float64)
    assert np.all(np.abs(y.astype(np.float64) - exact) <= 0.5 * ulp + 63 * 2.0**-24 * spread)


KIND = Agreed("allreduce", size_class(800))


def settle(comm: World, call: Agreed, name: str) -> None:
    """Let a kind of calls go to an algorithm for good."""
    left = comm._service.chooser._calls_left(call)
    answer = Answer(Choice(name, 0.0, {}, {}, None), left)
    comm._service.chooser._answers[call] = answer
    comm._service.chooser._hold(call, answer, ENDLESS)


def test_an_op_that_is_the_librarys_leaves_a_kernel_its_sizes(world: World) -> None:
    def last(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        del left, right, datatype

    if world.size == 1:
        return
    with world.Dup() as comm:
        settle(comm, KIND, SHARED)
        settle(comm, KIND._replace(commutative=False), NATIVE)
        op = MPI.Op.Create(last, commute=False)
        x, y = np.full(100, comm.rank + 1.0), np.zeros(100)
        for _ in range(2):
            comm.Allreduce(x, y)
            comm.Allreduce(x, y, op)
            assert (y == comm.size).all()
        op.Free()
        comm.Allreduce(x.data if comm.rank == 0 else x, y)
        assert (y == sum(range(comm.size + 1))).all()
        assert near_calls(comm) == (1 if comm.rank == 0 else 2)


def test_what_was_inherited_once_is_not_known_for_good(world: World) -> None:
    if world.size == 1:
        return
    with world.Dup() as comm:
        chooser = comm._service.chooser
        chooser._heritage, chooser.trials = {KIND: SHARED}, False
        x, y = np.ones(100), np.zeros(100)
        comm.Allreduce(x, y)
        assert comm.statistics().algorithms == {"allreduce": {SHARED: 1}}
        assert chooser.calls_left("allreduce")[KIND.size_class] == 0, "it is looked at again"
        settle(comm, KIND, NATIVE)
        comm._service.shortcuts.keep_only("allreduce", KIND.size_class, NATIVE)
        for _ in range(2):
            comm.Allreduce([x, MPI.DOUBLE] if comm.rank == 0 else x, y)
            assert (y == comm.size).all()


class _Alarm(Exception):
    pass


def _interrupted(comm: World, x: np.ndarray, y: np.ndarray) -> None:
    """Agreed on rank 0 until an alarm comes between, on the others after that."""

    def ring(*_: object) -> None:
        raise _Alarm

    if comm.rank:
        comm.recv(source=0)
        comm.Allreduce(x, y, algorithm="shared")
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(_Alarm):
        comm.Allreduce(x, y, algorithm="shared")
    signal.signal(signal.SIGALRM, before)
    for other in range(1, comm.size):
        comm.send(None, other)


@pytest.mark.parametrize(
    ("n", "step", "goes_on"),
    [(100, 1, False), (100, 2, True), (300_000, 1, True), (300_000, 1, False), (300_000, 2, False)],
)
def test_what_a_signal_comes_between_is_done_all_the_same(
    world: World, n: int, step: int, goes_on: bool
) -> None:
    """The others have their sum, whether or not the next call comes before they look."""
    if world.size == 1:
        return
    with world.Dup() as comm:
        size = comm.size

        def fill(value: float) -> np.ndarray:
            return np.full(step * n, value)[::step]

        y = fill(0.0)
        comm.Allreduce(fill(1.0), y, algorithm="shared")
        _interrupted(comm, fill(10.0 if comm.rank == 0 else 1.0), y)
        if comm.rank:
            assert (y == 10 + size - 1).all()
        elif step == 1 and not goes_on:
            until = time.monotonic() + 10
            while (y != 10 + size - 1).any():
                assert time.monotonic() < until, "nobody ends it"
                time.sleep(0.01)
        for value in (1000.0, 2000.0):
            comm.Allreduce(fill(value), y, algorithm="shared")
            assert (y == size * value).all()
        comm.Barrier()
