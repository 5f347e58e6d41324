"""Buffers that mpi4py takes, or refuses, and what is easily made wrong of them."""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.errors import WrongType

PLANS = ["native", "shared", "ring", "recursive_halving", "pairwise", "direct"]


@pytest.mark.parametrize("algorithm", PLANS)
@pytest.mark.parametrize("counted", [False, True])
def test_a_result_may_overwrite_what_is_sent(
    world: cr.Communicator, algorithm: str, counted: bool
) -> None:
    if algorithm == "shared" and world.size == 1:
        pytest.skip("one rank shares nothing")
    n, size = 1000, world.size
    x = np.repeat(np.arange(size) * 10.0 + world.rank, n)
    try:
        if counted:
            world.Reduce_scatter(x, x[:n], [n] * size, algorithm=algorithm)
        else:
            world.Reduce_scatter_block(x, x[:n], algorithm=algorithm)
    except cr.UsageError:  # on all ranks: there are too few, or too many
        return
    assert (x[:n] == size * 10.0 * world.rank + sum(range(size))).all()


def test_an_op_of_the_program_gets_no_bytes_in_the_wrong_order(world: cr.Communicator) -> None:
    def add(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        del datatype
        into = np.frombuffer(right, float)
        np.add(np.frombuffer(left, float), into, out=into)

    op = MPI.Op.Create(add, commute=True)
    x, y = np.ones(8, ">f8"), np.zeros(8, ">f8")
    with pytest.raises(cr.UsageError, match="not defined on >f8"):
        world.Allreduce(x, y, op)
    world.Allreduce(x, y)
    assert (y == world.size).all()
    op.Free()


@pytest.mark.parametrize("algorithm", ["native", "recursive_doubling", "ring"])
def test_a_matrix_is_an_array(world: cr.Communicator, algorithm: str) -> None:
    x = np.arange(4096.0).reshape(64, 64).view(np.matrix)
    y = np.zeros((64, 64)).view(np.matrix)
    world.Allreduce(x, y, algorithm=algorithm)
    assert (np.asarray(y) == world.size * np.asarray(x)).all()


def test_of_a_masked_array_the_data_travel(world: cr.Communicator) -> None:
    x = np.ma.masked_array(np.full(64, world.rank + 1.0), mask=np.arange(64) % 2 == 1)
    world.Bcast(x)
    assert (x.data == 1).all()


def test_kernels_of_one_size_may_be_asked_for_in_any_order(comm: MPI.Intracomm) -> None:
    """A third type must not go round in a circle of two."""
    with cr.init(comm, tuning={"allreduce": [{"algorithm": "shared"}]}) as ours:
        if ours.size == 1:
            pytest.skip("one rank shares nothing")
        for code, how in (("f4", "auto"), ("f8", "auto"), ("f8", "shared"), ("f4", "shared"),
                          ("i4", "auto"), ("i8", "shared")):  # fmt: skip
            x = np.ones(800 // np.dtype(code).itemsize, code)
            y = np.zeros_like(x)
            for _ in range(3):
                ours.Allreduce(x, y, algorithm=how)
            assert (y == ours.size).all()


@pytest.mark.parametrize("algorithm", ["binomial", "shared", "auto"])
def test_what_can_grow_may_grow_when_the_call_is_over(
    world: cr.Communicator, algorithm: str
) -> None:
    if algorithm == "shared" and world.size == 1:
        pytest.skip("one rank shares nothing")
    buffers: list[Any] = [bytearray(64), array.array("d", range(8))]
    for buffer in buffers:
        for turn in range(2):
            buffer[0] = 7 if world.rank == 0 else 0
            world.Bcast(buffer, algorithm=algorithm)
            assert buffer[0] == 7
            buffer[1] = turn + 1 if world.rank == 0 else 0
            world.Ibcast(buffer, algorithm=algorithm).Wait()
            assert buffer[1] == turn + 1
        buffer.extend(buffer[:1])  # refused while anybody has a view of it


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "rabenseifner"])
def test_a_map_may_be_closed_when_the_call_is_over(world: cr.Communicator, algorithm: str) -> None:
    with mmap.mmap(-1, 4096) as there:
        x, y = np.frombuffer(there, float, 64), np.zeros(64)
        for turn in range(3):
            x[:] = turn
            for given, taken in ((x, y), (y, x)):
                world.Allreduce(given, taken, algorithm=algorithm)
            assert (x == world.size**2 * turn).all()
        del x, given, taken


def _pairs() -> dict[str, tuple[Any, Any]]:
    """Give what holds four numbers of 8 bytes, in two types that are one to the machine."""
    x = np.arange(4)
    return {
        "ctypes": (x.astype("L"), (ctypes.c_uint64 * 4)()),
        "long long": (x, np.zeros(4, "q")),
        "array": (x.astype("q"), array.array("l", [0] * 4)),
        "named": ([x, MPI.LONG], [np.zeros(4, "q"), MPI.LONG_LONG]),
        "strided": (np.repeat(x, 2)[::2], np.zeros(4, "q")),
        "counted": ((x, 4, MPI.INT64_T), [np.zeros(4, "q"), 4]),
    }


@pytest.mark.parametrize("kind", _pairs())
@pytest.mark.parametrize("algorithm", ["auto", "native"])
def test_what_c_has_two_names_for_is_one_type(
    world: cr.Communicator, kind: str, algorithm: str
) -> None:
    sent, taken = _pairs()[kind]
    found = np.asarray(taken[0] if isinstance(taken, (list, tuple)) else taken)
    by_hand = np.arange(4) * world.size
    for _ in range(3):
        found[:] = 7
        world.Allreduce(sent, taken, algorithm=algorithm)
        assert found.tolist() == by_hand.tolist()
    found[:] = 7
    world.Iallreduce(sent, taken, algorithm=algorithm).Wait()
    assert found.tolist() == by_hand.tolist()
    operation = world.Reduce_init(sent, taken if world.rank == 0 else None, algorithm=algorithm)
    for _ in range(2):
        found[:] = 7
        operation.start()
        operation.wait()
        assert found.tolist() == (by_hand.tolist() if world.rank == 0 else [7] * 4)
    operation.close()


#: The calls that take a derived type, and which of their buffers are for each rank.
MOVES = {
    "Bcast": "1", "Allgather": "1n", "Gather": "1n", "Scatter": "n1", "Alltoall": "nn",
    "Allgatherv": "1n", "Gatherv": "1n", "Scatterv": "n1", "Alltoallv": "nn", "Allreduce": "11",
}  # fmt: skip


@pytest.mark.parametrize("way", ["", "I", "_init"])
def test_a_datatype_that_nobody_committed_is_refused(world: cr.Communicator, way: str) -> None:
    column, size = MPI.DOUBLE.Create_vector(2, 1, 2), world.size
    counted = [np.zeros(4 * size), [1] * size, [2 * i for i in range(size)], column]
    for name, buffers in MOVES.items():
        each = counted if name.endswith("v") else [np.zeros(4 * size), size, column]
        given = [each if one == "n" else [np.zeros(4), 1, column] for one in buffers]
        for algorithm in ("auto", "native", *(["binomial"] if name == "Bcast" else [])):
            call = getattr(world, f"I{name.lower()}" if way == "I" else name + way)
            with pytest.raises(cr.UsageError, match="is not committed; call its Commit"):
                call(*given, algorithm=algorithm)
            total = np.zeros(3)
            world.Allreduce(np.ones(3), total)
            assert (total == size).all(), name
    column.Free()


@pytest.mark.parametrize("algorithm", ["auto", "recursive_doubling"])
def test_times_are_no_integers(world: cr.Communicator, algorithm: str) -> None:
    size = world.size
    spans = np.full(4, world.rank + 1).astype("m8[s]")
    if world.rank == size - 1:
        spans[0] = np.timedelta64("NaT")
    for op, expected in ((MPI.SUM, size * (size + 1) // 2), (MPI.MIN, 1), (MPI.MAX, size)):
        found = np.zeros(4, "m8[s]")
        world.Allreduce(spans, found, op, algorithm=algorithm)
        assert np.isnat(found[0])
        one = expected if size > 1 else 1
        assert (found[1:] == np.timedelta64(one, "s")).all()
    days = np.full(4, "2026-11-28", "M8[D]") + world.rank
    latest = np.zeros(4, "M8[D]")
    world.Allreduce(days, latest, MPI.MAX, algorithm=algorithm)
    assert (latest == np.datetime64("2026-11-28") + (size - 1)).all()
    for wrong, op in ((days, MPI.SUM), (days, MPI.PROD), (spans, MPI.PROD), (spans, MPI.BOR)):
        with pytest.raises(cr.UsageError, match="is not defined on"):
            world.Allreduce(wrong, wrong.copy(), op)


def test_specifications_that_are_easily_mixed_up(world: cr.Communicator) -> None:
    whole, ones = np.zeros(world.size), [1] * world.size
    for displacements in (list(range(world.size)), np.arange(world.size)):
        with pytest.raises(WrongType, match=r"displacements go with counts: \(counts, displs\)"):
            world.Allgatherv(np.ones(1), [whole, ones, displacements])
    world.Allgatherv(np.ones(1), [whole, (ones, displacements)])
    assert (whole == 1).all()
    root: Any = np.array(world.size - 1)
    mine = np.full(3, float(world.rank))
    world.Bcast(mine, root=root)
    assert (mine == world.size - 1).all()
    with pytest.raises(cr.UsageError, match="the op is null"):
        world.Allreduce(np.ones(1), np.ones(1), MPI.OP_NULL)
