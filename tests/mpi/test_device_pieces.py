"""Long vectors on devices, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import device_collectives
from closeranks.comms.gpu import cuda_aware
from tests.fake_device import FakeArray, FakeDevice
from tests.mpi.expected import given, summed
from tests.mpi.lent import PLACES, Lent, lend, values


@pytest.fixture
def known(comm: MPI.Intracomm | None) -> Iterator[Lent | None]:
    """The ranks and a fake device; None on the ranks left out."""
    yield from lend(comm, FakeDevice())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 4 KiB are long, and pieces have 1 KiB."""
    monkeypatch.setattr(device_collectives, "LONG", 4096)
    monkeypatch.setattr(device_collectives, "PIECE", 1024)


def _long(lent: Lent, place: str) -> tuple[Any, Any]:
    """A long vector and room for another, 9 pieces and a bit, where ``place`` says."""
    x, y = given(lent.comm.rank, 1170), np.full(1170, -1)
    on_odd = place == "odd" and lent.comm.rank % 2 == 1
    return (
        lent.fake.array(x) if place in ("all", "sent") or on_odd else x,
        lent.fake.array(y) if place in ("all", "received") or on_odd else y,
    )


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("place", "algorithm"),
    [*((place, "auto") for place in PLACES), ("odd", "native"), ("odd", "ring")],
)
def test_long_vectors_go_in_pieces(known: Lent, place: str, algorithm: str) -> None:
    comm = known.comm
    total = summed(comm.size, 1170).tolist()
    for _ in range(2):
        x, y = _long(known, place)
        comm.Allreduce(x, y, algorithm=algorithm)
        assert values(y) == total
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
        assert values(y) == summed(comm.size, 1170).tolist()
    x, y = _long(known, place)
    comm.Reduce(MPI.IN_PLACE if comm.rank == root else x, x, MPI.SUM, root)
    if comm.rank == root:
        assert values(x) == summed(comm.size, 1170).tolist()
    x, _ = _long(known, place)
    comm.Bcast(x, root)
    assert values(x) == given(root, 1170).tolist()


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


@pytest.mark.usefixtures("short")
def test_nothing_is_cut_where_the_library_takes_devices(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm is None:
        pytest.skip("left out")
    monkeypatch.setattr(cuda_aware, "reaches_devices", lambda: True)
    for lent in lend(comm, FakeDevice(visible=True)):
        assert lent is not None
        for algorithm, way in (("native", "library"), ("ring", "pieces")):
            x, y = _long(lent, "all")
            lent.comm.Allreduce(x, y, algorithm=algorithm)
            assert values(y) == summed(comm.size, 1170).tolist()
            assert lent.comm.statistics().device[way] == 1
        said = str(lent.comm.explain("allreduce", 1 << 20))
        assert "pieces" not in said


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("place", PLACES)
def test_half_precision_that_travels_wide(known: Lent, place: str) -> None:
    comm, fake = known.comm, known.fake
    fake.moves.set()
    for count in (50, 3001):
        x, y = given(comm.rank, count, np.float16), np.zeros(count, np.float16)
        on_odd = place == "odd" and comm.rank % 2 == 1
        source = fake.array(x) if place in ("all", "sent") or on_odd else x
        target = fake.array(y) if place in ("all", "received") or on_odd else y
        with comm.using(wire="float32"):
            comm.Allreduce(source, target)
            assert values(target) == summed(comm.size, count, np.float16).tolist()
            comm.Iallreduce(source, target, cr.MEAN).wait()
        mean = summed(comm.size, count, np.float32) / comm.size
        np.testing.assert_allclose(values(target), mean, rtol=1e-3)
