"""Arrays on devices in every collective, with a device that forgives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives import interpreter, relay
from closeranks.collectives.problem import OPERATIONS
from closeranks.comms import cuda_aware
from closeranks.comms.device_interface import install
from closeranks.errors import Unavailable, UsageError
from tests.fake_device import FakeArray, FakeDevice
from tests.mpi.expected import cases, given, summed

METHODS = [name.capitalize() for name in OPERATIONS if name != "barrier"]
#: Which buffers lie on the device: those sent, those received, all, those of odd ranks.
PLACES = ["sent", "received", "all", "odd"]


class Lent(NamedTuple):
    """A communicator of ranks that have a device."""

    comm: cr.Communicator
    fake: FakeDevice


def _lend(comm: MPI.Intracomm | None, fake: FakeDevice, **options: Any) -> Iterator[Lent | None]:
    if comm is None:
        yield None
        return
    remove = install(fake)
    fake.comm = comm
    try:
        with cr.init(comm, **options) as opened:
            yield Lent(opened, fake)
    finally:
        remove()


@pytest.fixture
def known(comm: MPI.Intracomm | None) -> Iterator[Lent | None]:
    """The ranks and a fake device; None on the ranks left out."""
    yield from _lend(comm, FakeDevice())


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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("algorithm", ["auto", "native", "plan"])
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


def test_requests_of_devices_wait_with_others(known: Lent) -> None:
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
    import ctypes

    from closeranks.comms import dlpack

    shape = (ctypes.c_int64 * 1)(1)
    tensor = dlpack._Tensor(1, 2, 0, 1, 4, 16, 1, shape)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    _alive.append((shape, tensor))
    return new(ctypes.addressof(tensor), dlpack._NAME, None)


_alive: list[Any] = []


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 4 KiB are long, and pieces have 1 KiB."""
    monkeypatch.setattr(relay, "LONG", 4096)
    monkeypatch.setattr(relay, "PIECE", 1024)


def _long(lent: Lent, place: str) -> tuple[Any, Any]:
    """A long vector and room for another, 9 pieces and a bit, where ``place`` says."""
    x, y = given(lent.comm.rank, 1170), np.full(1170, -1)
    on_odd = place == "odd" and lent.comm.rank % 2 == 1
    return (
        lent.fake.array(x) if place in ("all", "sent") or on_odd else x,
        lent.fake.array(y) if place in ("all", "received") or on_odd else y,
    )


def _values(array: Any) -> list[Any]:
    found: list[Any] = (array.get() if isinstance(array, FakeArray) else array).tolist()
    return found


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("algorithm", ["auto", "native", "ring"])
@pytest.mark.parametrize("place", PLACES)
def test_long_vectors_go_in_pieces(known: Lent, place: str, algorithm: str) -> None:
    comm = known.comm
    total = summed(comm.size, 1170).tolist()
    for _ in range(2):
        x, y = _long(known, place)
        comm.Allreduce(x, y, algorithm=algorithm)
        assert _values(y) == total
    on_device = isinstance(x, FakeArray) + isinstance(y, FakeArray)
    assert comm.statistics().device == ({"pieces": 2} if on_device else {})
    assert known.fake.copies == 2 * 10 * on_device


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("place", PLACES)
def test_pieces_of_bcast_and_reduce(known: Lent, place: str) -> None:
    comm = known.comm
    root = comm.size - 1
    x, y = _long(known, place)
    comm.Reduce(x, y, MPI.SUM, root)
    if comm.rank == root:
        assert _values(y) == summed(comm.size, 1170).tolist()
    x, y = _long(known, place)
    comm.Reduce(MPI.IN_PLACE if comm.rank == root else x, x, MPI.SUM, root)
    if comm.rank == root:
        assert _values(x) == summed(comm.size, 1170).tolist()
    x, _ = _long(known, place)
    comm.Bcast(x, root)
    assert _values(x) == given(root, 1170).tolist()


@pytest.mark.usefixtures("short")
def test_pieces_in_place_and_of_other_types(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x = fake.array(given(comm.rank, 1170, np.float32))
    comm.Allreduce(MPI.IN_PLACE, x, cr.MEAN)
    mean = summed(comm.size, 1170, np.float32) / np.float32(comm.size)
    np.testing.assert_allclose(x.get(), mean, rtol=1e-6)
    half = fake.array(given(comm.rank, 4001, np.float16))
    comm.Allreduce(MPI.IN_PLACE, half)
    assert half.get().tolist() == summed(comm.size, 4001, np.float16).tolist()
    part = fake.array(np.concatenate([np.full(3, -1), given(comm.rank, 1170)]))
    comm.Allreduce(MPI.IN_PLACE, [part, (1170, 3), MPI.LONG])
    assert part.get().tolist() == [-1] * 3 + summed(comm.size, 1170).tolist()
    assert comm.statistics().device == {"pieces": 3}


@pytest.mark.usefixtures("short")
def test_pieces_of_what_has_gaps_on_some_ranks(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    table = np.stack([given(comm.rank, 1170), np.full(1170, -5)], axis=1)
    x: Any = table[:, 0]
    if comm.rank % 2 == 0:
        x = fake.array(table)[:, 0]
    y = fake.array(table)
    comm.Allreduce(x, y[:, 1])
    assert y.get()[:, 1].tolist() == summed(comm.size, 1170).tolist()
    assert y.get()[:, 0].tolist() == given(comm.rank, 1170).tolist()
    buffer, typed = np.array(table), MPI.LONG.Create_vector(1170, 1, 2).Commit()
    comm.Bcast([buffer, 1, typed] if comm.rank == 0 else fake.array(table)[:, 0], 0)
    typed.Free()


@pytest.mark.usefixtures("short")
def test_pieces_wait_for_the_callers_stream_and_lead_it(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    with fake.using(fake.stream(0)):
        x = fake.array(np.zeros(1170))
        for value in range(1, 4):
            x.set(np.full(1170, float(value)))
            comm.Allreduce(MPI.IN_PLACE, x)
            assert set(x.get().tolist()) == {value * comm.size}


@pytest.mark.usefixtures("short")
def test_a_size_that_was_the_hosts_first_stays_whole(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = np.ones(600), np.empty(600)
    comm.Allreduce(x, y)
    comm.Allreduce(fake.array(x), y)
    assert y.tolist() == [comm.size] * 600
    assert comm.statistics().device == {"whole": 1}


def test_shortcuts_are_for_the_hosts_arrays(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    assert interpreter.is_loaded()
    for name in OPERATIONS:
        for nbytes in (24, 24 * comm.size):
            comm._service.shortcuts.learn(name, nbytes)
    x, y = np.full(3, 1.0), np.empty(3)
    comm.Allreduce(x, y)
    taken = comm._service.shortcuts.calls()["allreduce"]
    assert taken == 1
    for source, target in ((fake.array(x), fake.array(y)), (fake.array(x), y), (x, fake.array(y))):
        comm.Allreduce(source, target)
        assert _values(target) == [comm.size] * 3
    comm.Allreduce([fake.array(x), MPI.DOUBLE], [y, MPI.DOUBLE])
    comm.Bcast(fake.array(x))
    assert comm._service.shortcuts.calls()["allreduce"] == taken
    wide, counts = np.arange(3.0 * comm.size), [3] * comm.size
    comm.Alltoallv([fake.array(wide), counts], [out := fake.array(wide), counts])
    assert len(out.get()) == 3 * comm.size


def test_kernels_are_for_the_hosts_arrays(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x, y = np.full(3000, 1.0), np.empty(3000)
    for _ in range(3):
        comm.Allreduce(x, y)
        comm._service._remember(
            comm._service.read("allreduce", "", "auto", (x, y, MPI.SUM)), "shared"
        )
    for source, target in ((fake.array(x), y), (x, fake.array(y)), (fake.array(x), fake.array(y))):
        comm.Allreduce(source, target)
        assert set(_values(target)) == {comm.size}


def test_a_library_that_knows_devices_gets_them(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm is None:
        pytest.skip("left out")
    monkeypatch.setattr(cuda_aware, "reaches_devices", lambda: True)
    for lent in _lend(comm, FakeDevice(visible=True)):
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
    for lent in _lend(comm, FakeDevice(), **options):
        assert lent is not None
        mine, fake = lent.comm, lent.fake
        x, y = fake.array(given(mine.rank, 9)), fake.full(9, -1, "i8")
        mine.Allreduce(x, y)
        assert y.get().tolist() == summed(mine.size, 9).tolist()
        part = mine.Split(mine.rank % 2, mine.rank)
        part.Allreduce(MPI.IN_PLACE, x)
        assert len(x.get()) == 9
        part.Free()


def test_devices_among_themselves(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    size, root = comm.size, comm.size - 1
    mine, whole = given(comm.rank, 4), given(comm.rank, 4 * size)
    x, wide = fake.array(mine), fake.array(whole)
    y, blocks = fake.full(4, -1, "i8"), fake.full(4 * size, -1, "i8")
    with comm.using(algorithm="nccl"):
        comm.Allreduce(x, y)
        assert y.get().tolist() == summed(size, 4).tolist()
        comm.Reduce(x, y if comm.rank == root else None, MPI.MAX, root)
        if comm.rank == root:
            assert y.get().tolist() == np.max([given(r, 4) for r in range(size)], axis=0).tolist()
        comm.Reduce_scatter_block(wide, y)
        assert y.get().tolist() == summed(size, 4 * size)[4 * comm.rank :][:4].tolist()
        comm.Allgather(x, blocks)
        assert blocks.get().reshape(size, 4).tolist() == [given(r, 4).tolist() for r in range(size)]
        comm.Bcast(x, root)
        assert x.get().tolist() == given(root, 4).tolist()
    half = fake.array(mine.astype("f4"))
    comm.Allreduce(MPI.IN_PLACE, half, cr.MEAN, algorithm="nccl")
    np.testing.assert_allclose(half.get(), summed(size, 4) / size, rtol=1e-6)
    blocks[4 * comm.rank : 4 * comm.rank + 4].set(mine + 1)
    comm.Allgather(MPI.IN_PLACE, blocks, algorithm="nccl")
    assert blocks.get().reshape(size, 4)[0].tolist() == (given(0, 4) + 1).tolist()
    assert (comm.statistics().device, fake.copies) == ({"nccl": 7}, 0)
    assert comm.statistics().algorithms["allreduce"] == {"nccl": 2}
    assert len(fake.groups) == 1
    assert "by NCCL" not in str(comm.explain("allreduce", 32))


def test_devices_stay_on_the_callers_stream(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    with fake.using(fake.stream(0)):
        x, y = fake.full(3, 0.0, "f8"), fake.full(3, 0.0, "f8")
        x.set(np.full(3, 2.0))
        comm.Allreduce(x, y, algorithm="nccl")
        assert not (y.peek() == 2 * comm.size).any()  # nobody has waited
        x.set(np.full(3, 9.0))  # after it, on the same stream
        assert y.get().tolist() == [2 * comm.size] * 3
    plain = fake.array(np.full(3, 2.0), ordered=False)
    comm.Allreduce(MPI.IN_PLACE, plain, algorithm="nccl")
    assert plain.peek().tolist() == [2 * comm.size] * 3


def test_the_group_of_devices_belongs_to_the_world(comm: MPI.Intracomm) -> None:
    if comm is None:
        pytest.skip("left out")
    fake = FakeDevice()
    for lent in _lend(comm, fake):
        assert lent is not None
        lent.comm.Allreduce(MPI.IN_PLACE, x := fake.full(3, 1, "i8"), algorithm="nccl")
        assert x.get().tolist() == [comm.size] * 3
        part = lent.comm.Dup()
        part.Allreduce(MPI.IN_PLACE, x, algorithm="nccl")
        assert x.get().tolist() == [comm.size**2] * 3
        assert [group.is_closed for group in fake.groups] == [False, False]
    assert [group.is_closed for group in fake.groups] == [True, True]


def test_the_group_is_given_up_with_its_world(comm: MPI.Intracomm) -> None:
    if comm is None:
        pytest.skip("left out")
    fake = FakeDevice()
    with suppress(ZeroDivisionError):
        for lent in _lend(comm, fake):
            assert lent is not None
            with lent.comm as left:
                left.Allreduce(MPI.IN_PLACE, x := fake.full(3, 1, "i8"), algorithm="nccl")
                x.get()
                raise ZeroDivisionError
    assert [group.is_revoked for group in fake.groups] == [True]


def test_who_cannot_do_it_says_so_on_all_ranks(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x = fake.full(4, 1.0, "f8")
    fake.refusal = "CuPy finds no NCCL" if comm.rank == comm.size - 1 else ""
    with pytest.raises(Unavailable, match=f"rank {comm.size - 1}: CuPy finds no NCCL"):
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="nccl")
    fake.refusal, fake.is_shared = "", True
    if comm.size > 1:
        with pytest.raises(Unavailable, match=r"ranks \[0, 1.*\] share device"):
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="nccl")
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((np.ones(4), np.ones(4)), "must all lie on one device"),
        ((x, np.ones(4)), "must all lie on one device"),
        ((fake.full((4, 2), 1.0, "f8")[:, 0], x), "no gaps"),
        ((x, x, MPI.MAXLOC), "does not reduce float64 by this op"),
        ((x, x, MPI.Op.Create(lambda *_: None)), "does not reduce float64 by this op"),
    ]
    for arguments, text in wrong:
        with pytest.raises(UsageError, match=text):
            comm.Allreduce(*arguments, algorithm="nccl")
    with pytest.raises(UsageError, match="reduce_scatter_block in place"):
        comm.Reduce_scatter_block(MPI.IN_PLACE, fake.full(comm.size, 1, "i8"), algorithm="nccl")
    with pytest.raises(UsageError, match="blocking calls of arrays on devices"):
        comm.Iallreduce(MPI.IN_PLACE, x, algorithm="nccl")
    with pytest.raises(UsageError, match="no algorithm 'nccl' of alltoall"):
        comm.Alltoall(wide := fake.full(comm.size, 1, "i8"), wide, algorithm="nccl")
