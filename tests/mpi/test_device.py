"""Arrays on devices in every collective, with a device that forgives nothing."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.arguments.call_key import UNSIZED, size_class
from closeranks.collectives.dispatch import dispatch, race_calls
from closeranks.collectives.engine import interpreter
from closeranks.collectives.plans.collective import OPERATIONS
from closeranks.comms.gpu import cuda_aware
from closeranks.errors import UsageError
from tests.fake_device import FakeArray, FakeDevice
from tests.mpi.expected import cases, given, summed
from tests.mpi.lent import PLACES, Lent, lend, values


@pytest.fixture
def known(comm: MPI.Intracomm | None) -> Iterator[Lent | None]:
    """The ranks and a fake device; None on the ranks left out."""
    yield from lend(comm, FakeDevice())


def moved(lent: Lent, argument: Any, where: dict[int, FakeArray]) -> Any:
    """Put what an argument holds on the device; note under which array's id."""
    if isinstance(argument, np.ndarray):
        return where.setdefault(id(argument), lent.fake.array(argument))
    if isinstance(argument, list) and argument and isinstance(argument[0], np.ndarray):
        return [moved(lent, argument[0], where), *argument[1:]]
    return argument


def placed(lent: Lent, method: str, arguments: list[Any], place: str) -> dict[int, FakeArray]:
    """Move some of a call's buffers to the device, in place; id of the host's -> ours."""
    where: dict[int, FakeArray] = {}
    wanted = {
        "sent": [0],
        "received": [0 if method == "Bcast" else 1],
        "all": [0, 1],
        "odd": [0, 1],
    }
    if place == "odd" and lent.comm.rank % 2 == 0:
        return where
    for index in wanted[place]:
        if index < len(arguments):
            arguments[index] = moved(lent, arguments[index], where)
    return where


def check(case: Any, where: dict[int, FakeArray]) -> None:
    """Compare what stands in the result's buffer with what must."""
    if case.result is None:
        return
    out = where.get(id(case.out))
    found = case.out if out is None else out.get()
    np.testing.assert_array_equal(found, case.result, err_msg=case.method)


@pytest.mark.parametrize(
    ("algorithm", "place"),
    [*(("auto", place) for place in PLACES), ("native", "all"), ("native", "odd"),
     ("plan", "all"), ("plan", "odd")],
)  # fmt: skip
def test_every_operation(known: Lent, algorithm: str, place: str) -> None:
    comm = known.comm
    for root in {0, comm.size - 1}:
        for case in cases(comm.rank, comm.size, root):
            where = placed(known, case.method, case.arguments, place)
            name = algorithm
            if algorithm == "plan":
                name = cr.collectives.algorithms(case.method.lower())[0]
            getattr(comm, case.method)(*case.arguments, algorithm=name)
            check(case, where)


@pytest.mark.parametrize("algorithm", ["auto", "native", "plan"])
def test_every_operation_in_the_background(known: Lent, algorithm: str) -> None:
    known.fake.moves.set()
    comm = known.comm
    for case in cases(comm.rank, comm.size, 0):
        where = placed(known, case.method, case.arguments, "all")
        name = algorithm
        if algorithm == "plan":
            name = cr.collectives.algorithms(case.method.lower())[0]
        request = getattr(comm, f"I{case.method.lower()}")(*case.arguments, algorithm=name)
        request.Wait()
        out = where.get(id(case.out))
        if out is not None and case.result is not None:  # there, whatever stream looks
            np.testing.assert_array_equal(out.peek(), case.result, err_msg=case.method)


@pytest.mark.parametrize("algorithm", ["native", "plan"])
def test_every_operation_prepared(known: Lent, algorithm: str) -> None:
    known.fake.moves.set()
    comm = known.comm
    for case in cases(comm.rank, comm.size, 0):
        where = placed(known, case.method, case.arguments, "all")
        name = algorithm
        if algorithm == "plan":
            name = cr.collectives.algorithms(case.method.lower())[0]
        prepared = getattr(comm, f"{case.method}_init")(*case.arguments, algorithm=name)
        out = where.get(id(case.out))
        for _ in range(2):
            if out is not None and case.method != "Bcast":
                out.set(np.full(out.shape, -7))
            prepared.start()
            prepared.wait()
            if out is not None and case.result is not None:
                np.testing.assert_array_equal(out.peek(), case.result, err_msg=case.method)
        prepared.close()


def test_a_prepared_operation_reads_what_is_there_at_each_start(known: Lent) -> None:
    known.fake.moves.set()
    comm, fake = known.comm, known.fake
    x, y = fake.full(4, 0.0, "f8"), fake.full(4, 0.0, "f8")
    other = fake.stream(0)
    for algorithm in ("native", "ring"):
        with comm.Allreduce_init(x, y, algorithm=algorithm) as prepared:
            for value, stream in ((1.0, 1), (2.0, other), (3.0, 1)):
                with fake.using(stream):
                    x.set(np.full(4, value))
                    prepared.start()
                prepared.wait()
                assert y.peek().tolist() == [value * comm.size] * 4


def test_what_starts_in_the_background_waits_for_no_stream(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = fake.array(np.zeros(5)), fake.full(5, 0.0, "f8")
    prepared = comm.Allreduce_init(x, y, algorithm="ring")
    fake.synchronize()
    for start in (prepared.start, lambda: comm.Iallreduce(x, y, algorithm="ring")):
        fake.moves.clear()
        x.set(np.full(5, 3.0))
        request = start() or prepared
        assert not (x.peek() == 3).any()  # nor has anybody else
        assert not request.test()
        fake.moves.set()
        request.wait()
        assert y.peek().tolist() == [3 * comm.size] * 5
        x.set(np.zeros(5))
        fake.synchronize()
    prepared.close()


def test_requests_of_devices_wait_with_others(known: Lent) -> None:
    known.fake.moves.set()
    comm, fake = known.comm, known.fake
    pairs = [(fake.full(5, comm.rank + n, "f4"), fake.full(5, 0, "f4")) for n in range(3)]
    MPI.Request.Waitall([comm.Iallreduce(x, y, algorithm="ring") for x, y in pairs])
    for number, (_, y) in enumerate(pairs):
        assert y.peek().tolist() == [sum(range(comm.size)) + number * comm.size] * 5


def test_a_blocking_call_leaves_the_last_copy_to_the_stream(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = fake.full(6, 1.0, "f8"), fake.full(6, 0.0, "f8")
    fake.synchronize()
    comm.Allreduce(x, y)
    assert y.peek().tolist() == [0] * 6
    assert y.get().tolist() == [comm.size] * 6


def test_work_on_another_stream(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    with fake.using(fake.stream(0)):
        x, y = fake.full(6, 2.0, "f8"), fake.full(6, 0.0, "f8")
        comm.Allreduce(x, y)
        y.set(y.get() + 1)
        comm.Allreduce(MPI.IN_PLACE, y)
        assert y.get().tolist() == [(2 * comm.size + 1) * comm.size] * 6


def test_what_is_sent_may_be_written_again(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = fake.full(6, 1.0, "f8"), fake.full(6, 0.0, "f8")
    comm.Allreduce(x, y)
    x.set(np.full(6, 99.0))
    assert y.get().tolist() == [comm.size] * 6


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring"])
def test_in_place(known: Lent, algorithm: str) -> None:
    comm, fake = known.comm, known.fake
    x = fake.array(given(comm.rank, 7))
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    assert x.get().tolist() == summed(comm.size, 7).tolist()
    blocks = fake.full((comm.size, 3), -1, "i8")
    blocks[comm.rank].set(given(comm.rank, 3))
    comm.Allgather(MPI.IN_PLACE, blocks)
    assert blocks.get().tolist() == [given(rank, 3).tolist() for rank in range(comm.size)]
    wide = fake.array(given(comm.rank, 2 * comm.size))
    comm.Reduce_scatter_block(MPI.IN_PLACE, wide)
    total = summed(comm.size, 2 * comm.size)
    assert wide.get()[:2].tolist() == total[2 * comm.rank :][:2].tolist()


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring"])
def test_arrays_with_gaps(known: Lent, algorithm: str) -> None:
    comm, fake = known.comm, known.fake
    table = fake.array(np.arange(24.0).reshape(6, 4))
    out = fake.full((6, 3), -1.0, "f8")
    comm.Allreduce(table[:, 1], out[:, 2], algorithm=algorithm)
    expected = np.full((6, 3), -1.0)
    expected[:, 2] = np.arange(24.0).reshape(6, 4)[:, 1] * comm.size
    assert out.get().tolist() == expected.tolist()
    assert fake.on_device_copies == 2


def test_counts_and_displacements_leave_the_rest_alone(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    size = comm.size
    out = fake.full(3 * size + 1, -1, "i4")
    mine = fake.array(np.full(2, comm.rank, "i4"))
    comm.Allgatherv(mine, [out, ([2] * size, [3 * rank + 1 for rank in range(size)]), MPI.INT])
    expected = [-1] + [value for rank in range(size) for value in (rank, rank, -1)]
    assert out.get().tolist() == expected


def test_derived_datatypes(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    every_other = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    x = fake.array(np.arange(5.0) + 10 * (comm.rank + 1))
    comm.Bcast([x, 1, every_other], root=0)
    own = np.arange(5.0) + 10 * (comm.rank + 1)
    own[::2] = [10, 12, 14]
    assert x.get().tolist() == own.tolist()
    every_other.Free()


def test_types_that_the_library_has_no_name_for(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x = np.full(9, 1.5, ml_dtypes.bfloat16)

    class Half(FakeArray):
        """bfloat16, whose name the interface does not know."""

        def __dlpack__(self, *, stream: Any = None) -> Any:
            del stream
            return _capsule()

    def half() -> Half:
        made = fake.array(x.view(np.uint16))
        return Half(fake, made._pointer, (9,), (2,), np.dtype("V2"), 0, True)

    source, target = half(), half()
    comm.Allreduce(source, target)
    total = target.get().view(ml_dtypes.bfloat16).astype(float)
    assert total.tolist() == [1.5 * comm.size] * 9
    comm.Allreduce(source, target, cr.MEAN)
    assert target.get().view(ml_dtypes.bfloat16).astype(float).tolist() == [1.5] * 9


def _capsule() -> Any:
    """Make a capsule of one bfloat16; NumPy makes none."""
    from closeranks.comms.gpu import array_interface

    shape = (ctypes.c_int64 * 1)(1)
    tensor = array_interface._Tensor(1, 2, 0, 1, 4, 16, 1, shape)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    _alive.append((shape, tensor))
    return new(ctypes.addressof(tensor), array_interface._NAME, None)


_alive: list[Any] = []


def test_shortcuts_are_for_the_hosts_arrays(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    assert interpreter.is_loaded()
    for name in OPERATIONS:
        bits = 0 if name in UNSIZED else size_class(24)
        comm._service.shortcuts.learn(name, [bits], counted=False)
    x, y = np.full(3, 1.0), np.empty(3)
    comm.Allreduce(x, y)
    taken = comm._service.shortcuts.calls()["allreduce", "native"]
    assert taken == 1
    for source, target in ((fake.array(x), fake.array(y)), (fake.array(x), y), (x, fake.array(y))):
        comm.Allreduce(source, target)
        assert values(target) == [comm.size] * 3
    comm.Allreduce([fake.array(x), MPI.DOUBLE], [y, MPI.DOUBLE])
    comm.Bcast(fake.array(x))
    assert comm._service.shortcuts.calls()["allreduce", "native"] == taken
    wide, counts = np.arange(3.0 * comm.size), [3] * comm.size
    comm.Alltoallv([fake.array(wide), counts], [out := fake.array(wide), counts])
    assert len(out.get()) == 3 * comm.size


def test_kernels_are_for_the_hosts_arrays(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = np.full(3000, 1.0), np.empty(3000)
    for _ in range(3):
        comm.Allreduce(x, y)
        comm._service.learning.remember(
            comm._service.arguments.read("allreduce", "", "auto", (x, y, MPI.SUM)), "shared"
        )
    for source, target in ((fake.array(x), y), (x, fake.array(y)), (fake.array(x), fake.array(y))):
        comm.Allreduce(source, target)
        assert set(values(target)) == {comm.size}


def test_a_library_that_knows_devices_gets_them(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm is None:
        pytest.skip("left out")
    monkeypatch.setattr(cuda_aware, "reaches_devices", lambda: True)
    for lent in lend(comm, FakeDevice(visible=True)):
        assert lent is not None
        mine, fake = lent.comm, lent.fake
        x, y = fake.array(given(mine.rank, 9)), fake.full(9, -1, "i8")
        mine.Allreduce(x, y, algorithm="native")
        assert y.peek().tolist() == summed(mine.size, 9).tolist()
        assert fake.copies == 0
        mine.Iallreduce(x, y, algorithm="native").Wait()
        mine.Allreduce(fake.full((9, 2), 1, "i8")[:, 0], y, algorithm="native")
        assert fake.copies > 0
        assert mine.statistics().device == {"library": 1, "whole": 2}


def test_what_is_wrong_is_said_before_anything_is_sent(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    with pytest.raises(UsageError, match="4 entries of float64 take bytes 0 to 32 of 24"):
        comm.Bcast([fake.full(3, 0.0, "f8"), 4])
    with pytest.raises(UsageError, match="sends float64, receives float32"):
        comm.Allreduce(fake.full(3, 0.0, "f8"), fake.full(3, 0.0, "f4"))
    fixed = fake.full(3, 0.0, "f8")
    fixed.read_only = True
    with pytest.raises(UsageError, match="read-only"):
        comm.Allreduce(fixed, fixed)


@pytest.mark.parametrize("options", [{"timeout_s": 50}, {"check": True}, {"deterministic": True}])
def test_other_options(comm: MPI.Intracomm, options: dict[str, Any]) -> None:
    if comm is None:
        pytest.skip("left out")
    for lent in lend(comm, FakeDevice(), **options):
        assert lent is not None
        mine, fake = lent.comm, lent.fake
        x, y = fake.array(given(mine.rank, 9)), fake.full(9, -1, "i8")
        mine.Allreduce(x, y)
        assert y.get().tolist() == summed(mine.size, 9).tolist()
        part = mine.Split(mine.rank % 2, mine.rank)
        part.Allreduce(MPI.IN_PLACE, x)
        assert len(x.get()) == 9
        part.Free()


def test_what_the_library_says_of_itself(comm: MPI.Intracomm) -> None:
    if comm is None:
        pytest.skip("left out")
    assert isinstance(cuda_aware.reaches_devices(), bool)


@pytest.mark.parametrize(
    ("library", "environment", "answer"),
    [
        ({"MPIX_Query_cuda_support": lambda: 1}, {}, True),
        ({"MPIX_Query_cuda_support": lambda: 0}, {"MV2_USE_CUDA": "1"}, False),
        ({}, {}, False),
        ({}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        ({}, {"MV2_USE_CUDA": "0"}, False),
        ({"MPIX_GPU_query_support": lambda kind, found: _answer(kind, found, 1)}, {}, True),
        ({"MPIX_GPU_query_support": lambda kind, found: _answer(kind, found, 0)}, {}, False),
    ],
)
def test_libraries_that_say_it_in_different_ways(
    library: dict[str, Any],
    environment: dict[str, str],
    answer: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(**library))
    assert cuda_aware.reaches_devices.__wrapped__() is answer


def _answer(kind: int, found: Any, value: int) -> int:
    """Answer as MPICH does: through a pointer."""
    assert kind == 0
    found._obj.value = value
    return 0


def test_explain_names_the_way(known: Lent) -> None:
    said = str(known.comm.explain("allreduce", 64 << 20))
    assert "arrays on devices: through pinned memory, in 16 pieces" in said
    said = str(known.comm.explain("alltoall", 64 << 20))
    assert "arrays on devices: through pinned memory, whole" in said
    with known.comm.using(algorithm="nccl"):
        assert "arrays on devices: among the devices, by NCCL" in str(
            known.comm.explain("allreduce", 64)
        )


def test_trials_pay_for_the_copies(known: Lent, monkeypatch: pytest.MonkeyPatch) -> None:
    comm, fake = known.comm, known.fake
    if comm.size == 1:
        return
    comm.membership.chooser.try_all()
    x, y = fake.full(8, 1.0, "f8"), fake.full(8, 0.0, "f8")
    seen: list[int] = []
    clock = time.perf_counter

    def look() -> float:
        seen.append(fake.copies)
        return clock()

    for module in (dispatch, race_calls):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=look))
    comm.Allreduce(x, y)
    assert comm.explain("allreduce", 64, "f8").calls_to_settle > 0
    assert seen == [0, 0, 2, 2]  # at the start, before and after the call, at the end
    assert y.get().tolist() == [comm.size] * 8
