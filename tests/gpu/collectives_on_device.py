"""Every collective on CuPy arrays; the ranks share what devices there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cupy
import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import device_collectives
from closeranks.collectives.sparse import (
    Route,
    SparseVector,
    allgather_chunks,
    reduce_scatter_chunks,
    topk_allreduce,
)
from tests.mpi.expected import cases, given, summed


def to_device(argument: Any, where: dict[int, Any]) -> Any:
    """Copy an argument's array to the device; note under which host array's id."""
    if isinstance(argument, np.ndarray):
        return where.setdefault(id(argument), cupy.asarray(argument))
    if isinstance(argument, list) and argument and isinstance(argument[0], np.ndarray):
        return [to_device(argument[0], where), *argument[1:]]
    return argument


def same(found: Any, wanted: Any) -> None:
    """Compare an array on the device with one on the host."""
    assert isinstance(found, cupy.ndarray)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.get(), wanted)


def sparse_calls(comm: cr.Communicator) -> None:
    """Make every sparse call on the host and on the device, and compare."""
    draw, size = np.random.default_rng(comm.rank), comm.size
    for nnz in (0, 5000):
        indices, values = draw.integers(0, 1 << 20, nnz), draw.random((nnz, 4), np.float32)
        wanted = comm.Allreduce_sparse(SparseVector(indices, values, 1 << 20))
        vector: Any = SparseVector(cupy.asarray(indices), cupy.asarray(values), 1 << 20)
        found = comm.Allreduce_sparse(vector)
        same(found.indices, wanted.indices)
        same(found.values, wanted.values)
        same(found.to_dense(), wanted.to_dense())
    x, kept = draw.random((2, 10_000))
    there: list[Any] = [cupy.asarray(x), cupy.asarray(np.repeat(kept, 2))[::2]]
    wanted, rest = topk_allreduce(comm, x, 100, kept)
    found, left = topk_allreduce(comm, there[0], 100, there[1])
    same(found.values, wanted.values)
    same(left, rest)
    owner, wishes = np.arange(size), np.ones((size, size), bool)
    chunks: dict[int, Any] = allgather_chunks(comm, {comm.rank: there[0]}, owner, wishes)
    sums = reduce_scatter_chunks(comm, chunks, owner, wishes)
    same(sums[comm.rank], chunks[comm.rank].get() * size)
    for tokens in (0, 300):
        to, rows = draw.integers(-1, size, (tokens, 2)), draw.random((tokens, 7), np.float32)
        route = Route(comm, to)
        device: Any = Route(comm, cupy.asarray(to))
        arrived = device.dispatch(cupy.asarray(rows))
        same(arrived, route.dispatch(rows))
        same(device.combine(arrived), route.combine(arrived.get()))


def main() -> None:
    """Run every operation in three forms, then long vectors in pieces, then sparse calls."""
    with cr.init() as comm:
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        for form in ("{}", "I{}", "{}_init"):
            for case in cases(comm.rank, comm.size, 0):
                where: dict[int, Any] = {}
                arguments = [to_device(argument, where) for argument in case.arguments[:2]]
                name = case.method.lower() if form == "I{}" else case.method
                under_way = getattr(comm, form.format(name))(*arguments, *case.arguments[2:])
                if form == "{}_init":
                    under_way.start()
                if under_way is not None:
                    under_way.wait()
                if case.result is not None:
                    np.testing.assert_array_equal(where[id(case.out)].get(), case.result)
        for count in (6, 16384):  # often enough for calls that are known to take short ways
            x = cupy.asarray(given(comm.rank, count))
            y = cupy.empty_like(x)
            for _ in range(80):
                y.fill(0)
                comm.Allreduce(x, y)
                np.testing.assert_array_equal(y.get(), summed(comm.size, count))
        device_collectives.LONG, device_collectives.PIECE = 1 << 20, 1 << 18
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.asarray(given(comm.rank, 1 << 20))
            y = cupy.empty_like(x)
            comm.Allreduce(x, y)
            np.testing.assert_array_equal(y.get(), summed(comm.size, 1 << 20))
            for dtype in ("f4", "f8", "i8"):
                x = cupy.asarray(given(comm.rank, 1 << 23).astype(dtype))
                comm.Allreduce(MPI.IN_PLACE, x, algorithm="ipc")
                np.testing.assert_array_equal(x.get(), summed(comm.size, 1 << 23).astype(dtype))
        with cupy.cuda.Stream(non_blocking=True):
            sparse_calls(comm)
        sys.stdout.write(f"right, by {comm.statistics().device}\n")


if __name__ == "__main__":
    main()
