"""Collectives that devices do among themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.errors import Unavailable, UsageError
from tests.fake_device import FakeDevice
from tests.mpi.expected import given, summed
from tests.mpi.lent import Lent, lend


@pytest.fixture
def known(comm: MPI.Intracomm | None) -> Iterator[Lent | None]:
    """The ranks and a fake device; None on the ranks left out."""
    yield from lend(comm, FakeDevice())


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
    for lent in lend(comm, fake):
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
        for lent in lend(comm, fake):
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
        ((x, x, MPI.MAXLOC), "op MAXLOC is not defined on MPI_DOUBLE"),
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
