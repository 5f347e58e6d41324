"""Buffers of one call that overlap, or hold numbers of other types: refused, or right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.engine import interpreter
from closeranks.errors import Disagreement, UsageError

World = cr.Communicator
COUNT = 6
#: Operations with two buffers on each rank, each with what is (sent, received) of COUNT blocks.
SHAPES = {
    "Allreduce": (1, 1),
    "Scan": (1, 1),
    "Exscan": (1, 1),
    "Reduce_scatter_block": (0, 1),
    "Allgather": (1, 0),
    "Alltoall": (0, 0),
}
FORMS = ["", "I", "_init"]


def _counts(comm: World, method: str) -> tuple[int, int]:
    """How many elements a call sends and receives; 0 stands for a block a rank."""
    sent, received = SHAPES[method]
    return COUNT * (sent or comm.size), COUNT * (received or comm.size)


def _call(comm: World, method: str, form: str, *arguments: Any, **named: Any) -> None:
    if form == "I":
        getattr(comm, "I" + method.lower())(*arguments, **named).Wait()
    elif form == "_init":
        with getattr(comm, method + "_init")(*arguments, **named) as operation:
            operation.start()
    else:
        getattr(comm, method)(*arguments, **named)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", SHAPES)
def test_buffers_that_overlap_in_part_are_refused(
    world: World | None, method: str, form: str
) -> None:
    if world is None or world.size != 3:
        return
    sent, received = _counts(world, method)
    for settled in (False, True):
        if settled and not form:
            assert interpreter.is_loaded()
            for _ in range(30):
                _call(world, method, form, np.ones(sent), np.zeros(received))
        for shift in (1, 1 - received):
            memory = np.ones(sent + received + abs(shift))
            first = max(0, -shift)
            given = memory[first : first + sent]
            taken = memory[first + shift : first + shift + received]
            for algorithm in ("auto", "native"):
                with pytest.raises(UsageError, match="overlap in memory"):
                    _call(world, method, form, given, taken, algorithm=algorithm)
        assert (memory == 1).all()
    given, taken = np.ones(sent), np.zeros(received)
    _call(world, method, form, given, taken)  # and the communicator goes on


@pytest.mark.parametrize("method", ["Allreduce", "Scan", "Alltoall"])
def test_a_buffer_that_is_passed_twice_is_in_place(world: World | None, method: str) -> None:
    if world is None or world.size != 3:
        return
    sent, _ = _counts(world, method)
    for algorithm in ("auto", "native"):
        for _ in range(20):
            twice = np.arange(float(sent)) + world.rank
            once = twice.copy()
            _call(world, method, "", twice, twice, algorithm=algorithm)
            _call(world, method, "", MPI.IN_PLACE, once, algorithm=algorithm)
            assert np.array_equal(twice, once)


def test_a_block_at_its_own_place_is_in_place(world: World | None) -> None:
    if world is None or world.size != 3:
        return
    size, rank = world.size, world.rank
    expected = np.repeat(np.arange(1.0, size + 1), COUNT)
    own = slice(rank * COUNT, (rank + 1) * COUNT)
    counts = [COUNT] * size
    for algorithm in ("auto", "native"):
        for _ in range(20):
            whole = np.zeros(COUNT * size)
            whole[own] = rank + 1
            world.Allgather(whole[own], whole, algorithm=algorithm)
            assert np.array_equal(whole, expected)
            whole[:] = 0
            whole[own] = rank + 1
            world.Allgatherv(whole[own], [whole, counts], algorithm=algorithm)
            assert np.array_equal(whole, expected)
            whole[:] = 0
            whole[own] = rank + 1
            world.Gather(whole[own], whole, algorithm=algorithm)
            if rank == 0:
                assert np.array_equal(whole, expected)
            world.Scatter(expected, whole[own], algorithm=algorithm)
            assert (whole[own] == rank + 1).all()


def test_neighbours_in_memory_do_not_overlap(world: World | None) -> None:
    if world is None or world.size != 3:
        return
    size = world.size
    for _ in range(30):
        memory = np.zeros(3 * COUNT)
        memory[:COUNT] = 1
        world.Allreduce(memory[:COUNT], memory[COUNT : 2 * COUNT])
        world.Allreduce(memory[COUNT : 2 * COUNT], memory[2 * COUNT :])
        assert memory.tolist() == [1] * COUNT + [size] * COUNT + [size**2] * COUNT
        table = np.ones((COUNT, 2))
        world.Allreduce(table[:, 0], table[:, 1])  # columns lie between each other
        assert (table == [1, size]).all()
        world.Allreduce(memory[:0], memory[:0])  # empty ones share nothing


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("method", "given", "taken"),
    [
        ("Allgather", ">f8", "<f8"),
        ("Alltoall", "f8", "i8"),
        ("Allgatherv", "i4", "f4"),
        ("Alltoallv", "<f8", ">f8"),
    ],
)
def test_other_types_are_not_received_as_they_lie(
    world: World | None, method: str, given: str, taken: str, form: str
) -> None:
    if world is None or world.size != 3:
        return
    size = world.size
    counts = [COUNT] * size
    one, all_of_them = np.ones(COUNT, given), np.ones(COUNT * size, given)
    room = np.zeros(COUNT * size, taken)
    given_as, taken_as = {
        "Allgather": (one, room),
        "Alltoall": (all_of_them, room),
        "Allgatherv": (one, [room, counts]),
        "Alltoallv": ([all_of_them, counts], [room, counts]),
    }[method]
    for settled in (False, True):
        if settled and not form:
            for _ in range(30):  # the same bytes, until the call takes a shortcut
                like = one.nbytes // 8 or 1
                right = np.ones(like * (1 if "gather" in method else size))
                into = np.zeros(like * size)
                even = [like] * size
                arguments: tuple[Any, Any] = (right, into)
                if method.endswith("v"):
                    first: Any = right if method == "Allgatherv" else [right, even]
                    arguments = first, [into, even]
                _call(world, method, form, *arguments)
        for algorithm in ("auto", "native"):
            with pytest.raises(UsageError, match=r"sends .*, receives "):
                _call(world, method, form, given_as, taken_as, algorithm=algorithm)
    assert not room.any()
    room_of_bytes = np.zeros(one.nbytes * size, np.uint8)
    world.Allgather(one, room_of_bytes)  # bytes take everything
    assert np.array_equal(room_of_bytes.view(given), np.ones(COUNT * size))


@pytest.mark.parametrize(("method", "way"), [("Bcast", 0), ("Gather", 1), ("Scatter", 1)])
def test_types_that_differ_between_ranks_are_a_disagreement(
    comm: MPI.Intracomm | None, method: str, way: int
) -> None:
    if comm is None or comm.size != 2:
        return
    with cr.init(comm, check=True) as checked:
        dtype = ">f8" if comm.rank == comm.size - 1 else "<f8"
        buffers = [np.ones(COUNT * checked.size if n == way else COUNT, dtype) for n in range(2)]
        if method == "Scatter":
            buffers.reverse()
        with pytest.raises(Disagreement, match="float64"):
            getattr(checked, method)(*buffers[: way + 1])
        whole = np.ones((COUNT, 2))
        column = MPI.DOUBLE.Create_vector(COUNT, 1, 2).Commit()
        checked.Bcast([whole, 1, column] if checked.rank == 0 else np.ones(COUNT))
        column.Free()


def test_structures_travel_as_they_are(world: World | None) -> None:
    if world is None or world.size != 3:
        return
    pair = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
    given = np.full(24, world.rank, np.uint8)
    taken = np.zeros(24 * 3, np.uint8)
    world.Allgather([given, 1, pair], [taken, 1, pair])
    world.Allgather([given, 1, pair], np.zeros(12 * 3, np.uint8))
    assert taken[:12].tolist() == [0] * 12
    pair.Free()
