"""Arrays of `Communicator.empty`: read where they lie, given back, refused together."""

from __future__ import annotations

import gc
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.shm import segment_layout as words
from closeranks.collectives.shm import shared_arrays
from closeranks.comms.jit import code_cache
from closeranks.comms.shm.shared_file import SharedFile, share
from closeranks.errors import Unavailable, UsageError

World = cr.Communicator
#: Elements of 8 bytes: enough for several segments.
COUNT = 70_000
METHODS = ("Allreduce", "Allgather", "Alltoall", "Bcast", "Reduce", "Reduce_scatter_block")


class Rude:
    """No type of elements, and not the usual words for it."""

    @property
    def dtype(self) -> object:
        raise RuntimeError("no")


needs_kernels = pytest.mark.skipif(
    not code_cache.is_possible(), reason="nothing can be compiled here"
)


def lengths(world: World, method: str) -> tuple[int, ...]:
    """Elements of the buffers of a call."""
    whole = COUNT * world.size
    known = {"Allgather": (COUNT, whole), "Alltoall": (whole, whole), "Bcast": (COUNT,)}
    return {**known, "Reduce_scatter_block": (whole, COUNT)}.get(method, (COUNT, COUNT))


def buffers(world: World, method: str, choice: random.Random) -> list[Any]:
    """Arrays for a call, each either a shared one or this rank's own."""
    made = []
    for number, length in enumerate(lengths(world, method)):
        array = world.empty(length)
        array = array if choice.random() < 0.7 else np.zeros(length)
        array[:] = np.arange(length) * (world.rank + 1) + number
        made.append(array)
    return made


def segments(world: World) -> int:
    """How many segments the node's memory has seen."""
    return int(world._service.world.node_memory.state[words.START])


@needs_kernels
@pytest.mark.parametrize("method", METHODS)
def test_results_are_those_of_the_library(world: World, method: str) -> None:
    choice = random.Random(world.rank)
    for _ in range(6):
        ours = buffers(world, method, choice)
        theirs = [array.copy() for array in ours]
        getattr(world, method)(*ours, algorithm="shared" if world.size > 1 else "auto")
        ours[0][:] -= ours[0] if len(ours) > 1 else 0  # nobody reads it any more
        getattr(MPI.Intracomm, method)(world, *theirs)
        assert np.array_equal(ours[-1], theirs[-1]), method


@needs_kernels
def test_a_vector_within_reach_is_one_segment(world: World) -> None:
    if world.size == 1:
        return
    x, y = world.empty(COUNT), world.empty(COUNT)
    x[:] = world.rank + 1
    world.Allreduce(x, np.empty(COUNT), algorithm="shared")
    before = segments(world)
    world.Allreduce(x, y, algorithm="shared")
    world.Iallreduce(x, y, algorithm="shared").Wait()
    operation = world.Allreduce_init(x, y, algorithm="shared")
    operation.start()
    operation.wait()
    assert segments(world) == before + 3
    assert (y == world.size * (world.size + 1) / 2).all()
    world.Allreduce(x, np.empty(COUNT), algorithm="shared")
    assert segments(world) > before + 4, "results out of reach go in segments"


@needs_kernels
def test_a_smaller_group_reaches_what_a_larger_one_made(world: World) -> None:
    if world.size < 3:
        return
    half = world.Split(world.rank % 2, world.rank)
    wide, narrow = world.empty(COUNT), half.empty(COUNT)
    for comm, array, whole in ((half, wide, True), (half, narrow, True), (world, narrow, False)):
        if comm.size == 1:
            continue
        comm.Allreduce(np.ones(5), np.empty(5), algorithm="shared")
        before = segments(comm)
        array[:] = 1
        comm.Allreduce(MPI.IN_PLACE, array, algorithm="shared")
        assert (array == comm.size).all()
        assert (segments(comm) == before + 1) is whole
    half.Free()


def test_the_last_to_drop_an_array_gives_its_memory_back(world: World) -> None:
    gc.collect()
    world.Barrier()
    first = world.empty(0)  # unmaps what others have left
    rows = set(shared_arrays._MAPPED)
    x = world.empty((3, 1 << 18))
    (row,) = set(shared_arrays._MAPPED) - rows
    mapped = shared_arrays._MAPPED[row]
    part = x[1, ::2]
    x[:] = 7
    world.Barrier()
    data = mapped.file.array[4096:]
    if world.rank == 0:
        del x
    world.Barrier()
    assert not mapped.is_dropped(), "a view of it still lives"
    assert data.view(np.float64).min() == 7
    world.Barrier()
    del part
    if world.rank > 0:
        del x
    world.Barrier()
    assert mapped.is_dropped()
    assert not data.any(), "its pages are gone"
    assert mapped.file.array[: world.size].all(), "its marks are not"
    world.Barrier()
    del data
    world.empty(1)
    assert shared_arrays._MAPPED[row] is not mapped, "its row is used again"
    del first


def test_an_array_outlives_its_communicator(comm: MPI.Intracomm) -> None:
    with cr.init(comm) as world:
        x = world.empty(5000, "i4")
    x[:] = 3
    assert x.sum() == 15000


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, -1), "f4"),
        (2.5, "f4"),
        (2, object),
        (2, "no type"),
        (2, "S0"),
        (1 << 50, "f8"),
        (2, "(2,)f4"),
        (2, Rude()),
    ],
)
def test_what_cannot_be_an_array_is_refused_on_all_ranks(
    world: World, shape: Any, dtype: Any
) -> None:
    last = world.rank == world.size - 1
    with pytest.raises(UsageError, match=rf"on rank {world.size - 1}\b.*elements of"):
        world.empty(shape if last else 4, dtype if last else "f4")


def test_a_node_without_room_fails_everywhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank stands for a node of its own, the others for one that has room."""

    def cramped(node: MPI.Intracomm, nbytes: int, **options: Any) -> SharedFile:
        file = share(node, nbytes, **options)
        if world.rank == 0:
            raise Unavailable("node memory", "make room")
        return file

    monkeypatch.setattr("closeranks.collectives.shm.shared_arrays.share", cramped)
    with pytest.raises(Unavailable, match="make room"):
        world.empty(10)
    monkeypatch.undo()
    monkeypatch.setattr(shared_arrays, "MOST", 0)
    with pytest.raises(Unavailable, match="more than 0 arrays"):
        world.empty(10)


def test_threads_make_arrays_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    comms = [world.Dup(), world.Dup()]

    def slow(node: MPI.Intracomm, nbytes: int, **options: Any) -> SharedFile:
        file = share(node, nbytes, **options)
        which = nbytes // 4096 // world.size
        time.sleep(0.02 * ((world.rank + which) % 2))
        return file

    def work(which: int) -> list[Any]:
        return [comms[which].empty(COUNT + which * 512) for _ in range(4)]

    monkeypatch.setattr("closeranks.collectives.shm.shared_arrays.share", slow)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(work, range(2)))
    for comm, arrays in zip(comms, made, strict=True):
        for number, x in enumerate(arrays):
            x[:] = number
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="shared" if world.size > 1 else "auto")
            assert (x == number * world.size).all()
    for comm in comms:
        comm.Free()


def test_a_forked_child_drops_nothing(world: World) -> None:
    x = world.empty(4)
    (mapped,) = [
        one for one in shared_arrays._MAPPED.values() if one.first < x.ctypes.data < one.last
    ]
    shared_arrays._drop(mapped.file, 0, world.size, process=-1)
    assert not mapped.file.array[: world.size].any()
    world.Barrier()
