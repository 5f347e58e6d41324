"""Devices of one node that read each other's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import device_collectives
from closeranks.comms.gpu import cuda_ipc
from closeranks.errors import Unavailable, UsageError
from tests.fake_device import FakeDevice
from tests.mpi.expected import given, summed
from tests.mpi.lent import Lent, lend

#: Of numbers of 8 bytes: less than a half of an IPC memory, and more.
LENGTHS = (5, 700)


@pytest.fixture
def known(comm: MPI.Intracomm | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lent | None]:
    """The ranks and a fake device with small IPC memories; None on the ranks left out."""
    monkeypatch.setattr(device_collectives, "HALF_BYTES", 1024)
    monkeypatch.setattr(cuda_ipc, "SHORT_BYTES", 64)
    yield from lend(comm, FakeDevice())


@pytest.mark.parametrize("n", LENGTHS)
def test_they_do_what_the_library_does(known: Lent, n: int) -> None:
    comm, fake = known.comm, known.fake
    size, rank, root = comm.size, comm.rank, comm.size - 1
    x, y = fake.array(given(rank, n)), fake.full(n, -1, "i8")
    wide, blocks = fake.array(given(rank, n * size)), fake.full(n * size, -1, "i8")
    with comm.using(algorithm="ipc"):
        comm.Allreduce(x, y)
        assert y.get().tolist() == summed(size, n).tolist()
        comm.Reduce(x, y if rank == root else None, MPI.MAX, root)
        if rank == root:
            assert y.get().tolist() == np.max([given(r, n) for r in range(size)], axis=0).tolist()
        comm.Reduce_scatter_block(wide, y)
        assert y.get().tolist() == summed(size, n * size)[n * rank :][:n].tolist()
        comm.Allgather(x, blocks)
        assert blocks.get().reshape(size, n).tolist() == [given(r, n).tolist() for r in range(size)]
        assert "by CUDA IPC" in str(comm.explain("allreduce", 32))
        comm.Bcast(x, root)
        assert x.get().tolist() == given(root, n).tolist()
    half = fake.array(given(rank, n).astype("f4"))
    comm.Allreduce(MPI.IN_PLACE, half, cr.MEAN, algorithm="ipc")
    np.testing.assert_allclose(half.get(), summed(size, n) / size, rtol=1e-6)
    assert comm.statistics().device == {"ipc": 6}
    assert fake.ipc_memories == size


def test_the_memory_goes_with_the_world(comm: MPI.Intracomm) -> None:
    if comm is None:
        pytest.skip("left out")
    fake = FakeDevice()
    for lent in lend(comm, fake):
        assert lent is not None
        for _ in range(3):
            lent.comm.Allreduce(MPI.IN_PLACE, x := fake.full(3, 1, "i8"), algorithm="ipc")
            assert x.get().tolist() == [comm.size] * 3
        assert fake.ipc_memories == comm.size
    assert fake.ipc_memories == 0


def test_the_memory_stays_when_the_world_is_given_up(comm: MPI.Intracomm) -> None:
    if comm is None:
        pytest.skip("left out")
    fake = FakeDevice()
    with suppress(ZeroDivisionError):
        for lent in lend(comm, fake):
            assert lent is not None
            with lent.comm as left:
                left.Allreduce(MPI.IN_PLACE, x := fake.full(3, 1, "i8"), algorithm="ipc")
                x.get()
                comm.Barrier()  # the others are through, too
                raise ZeroDivisionError
    assert fake.ipc_memories == comm.size


def test_who_cannot_do_it_says_so_on_all_ranks(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    x = fake.full(4, 1.0, "f8")
    last = comm.size - 1
    fake.refusal = "no IPC in this container" if comm.rank == last else ""
    with pytest.raises(Unavailable, match=f"rank {last}: .*no IPC in this container"):
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="ipc")
    fake.refusal, fake.unreachable = "", comm.rank == last
    if comm.size > 1:
        with pytest.raises(Unavailable, match=f"rank {last}: .*no peer access"):
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ipc")
    assert fake.ipc_memories == 0
    comm.Allreduce(MPI.IN_PLACE, fake.full(0, 1.0, "f8"), algorithm="ipc")
    with pytest.raises(UsageError, match="does not reduce int64 by this op"):
        comm.Allreduce(MPI.IN_PLACE, fake.full(4, 1, "i8"), MPI.BAND, algorithm="ipc")
    with pytest.raises(UsageError, match="must all lie on one device"):
        comm.Allreduce(np.ones(4), x, algorithm="ipc")
