"""Calls of a form that was read before: right, counted alike, refused as before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.arguments.call_form import form_of
from closeranks.collectives.arguments.call_key import Agreed, size_class

World = cr.Communicator
COUNT = 6


class Counted:
    """A duplicate of a communicator, and how many of its calls were read."""

    def __init__(self, comm: World) -> None:
        self.comm, self.reads = comm, 0
        self._read = comm._service.arguments.read
        vars(comm._service.arguments)["read"] = self._counted

    def _counted(self, *given: Any) -> Any:
        self.reads += 1
        return self._read(*given)


@pytest.fixture
def fresh(world: World | None) -> Iterator[Counted | None]:
    """A communicator that has met no form, and whose first calls are the library's."""
    if world is None:
        yield None
        return
    duplicate = world.Dup()
    duplicate._service.chooser.pricing.kernels = {}  # which may have been faster at init
    yield Counted(duplicate)
    duplicate.Free()


def gaps(values: Any, dtype: Any = float) -> Any:
    """An array with gaps."""
    return np.repeat(np.asarray(values, dtype), 2)[::2]


def arguments(comm: World, method: str) -> tuple[Any, ...]:
    """Arguments with gaps; the last array takes the result."""
    size, own = comm.size, gaps(np.arange(COUNT) + comm.rank)
    whole = gaps(np.arange(COUNT * size) * (comm.rank + 1))
    block, blocks = gaps(np.zeros(COUNT)), gaps(np.zeros(COUNT * size))
    root = size - 1
    return {
        "Bcast": (own, root),
        "Gather": (own, blocks, root),
        "Scatter": (whole, block, root),
        "Allgather": (own, blocks),
        "Alltoall": (whole, blocks),
        "Reduce": (own, block, MPI.MAX, root),
        "Allreduce": (own, block),
        "Reduce_scatter_block": (whole, block, MPI.SUM),
        "Reduce_scatter": (whole, block, [COUNT] * size, MPI.SUM),
        "Scan": (own, block),
        "Exscan": (own, block, MPI.PROD),
    }[method]


METHODS = ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Reduce", "Allreduce",
           "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_gaps_are_packed_as_before(fresh: Counted | None, method: str) -> None:
    if fresh is None:
        return
    for _ in range(6):
        ours, theirs = arguments(fresh.comm, method), arguments(fresh.comm, method)
        plain = [one.copy() if isinstance(one, np.ndarray) else one for one in theirs]
        getattr(fresh.comm, method)(*ours)
        getattr(MPI.Intracomm, method)(fresh.comm._service.plain, *plain)
        for one, other in zip(ours, plain, strict=True):
            if isinstance(one, np.ndarray):
                assert one.tolist() == other.tolist()
    assert fresh.reads == 2
    assert fresh.comm.statistics().calls == {method.lower(): 6}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([np.ones(9), (4, 2), MPI.DOUBLE], [np.zeros(9), (4, 1), MPI.DOUBLE]),
        ((np.ones(4), "d"), (np.zeros(4), "d")),
        (array("d", [1.0] * 4), array("d", [0.0] * 4)),
        ([array("d", [1.0] * 4), MPI.DOUBLE], [np.zeros(4), MPI.DOUBLE]),
        (np.ones((2, 2), order="F"), np.zeros(4)),
    ],
)
def test_other_forms_are_read_twice(fresh: Counted | None, source: Any, target: Any) -> None:
    if fresh is None:
        return
    memory = np.asarray(target[0] if isinstance(target, (list, tuple)) else target)
    for _ in range(5):
        memory[:] = 0
        type(fresh.comm).Allreduce(fresh.comm, sendbuf=source, recvbuf=target)
        assert memory.sum() == 4 * fresh.comm.size
    assert fresh.reads <= 2  # none where a shortcut knows the form


def test_types_without_a_name_travel_as_bytes(fresh: Counted | None) -> None:
    if fresh is None:
        return
    dtype = np.dtype(ml_dtypes.bfloat16)
    for turn in range(5):
        mine = gaps([turn if fresh.comm.rank == 0 else -1] * 3, dtype)
        fresh.comm.Bcast(mine)
        assert mine.astype(float).tolist() == [turn] * 3
        whole = np.zeros((fresh.comm.size, 2), dtype)
        fresh.comm.Allgather(np.full(2, fresh.comm.rank, dtype), whole)
        assert whole[:, 0].astype(int).tolist() == list(range(fresh.comm.size))
        square = np.zeros((2, 2), dtype, order="F")  # whose memory is by columns
        flat = np.arange(4 if fresh.comm.rank == 0 else 0).astype(dtype)
        fresh.comm.Bcast(flat if fresh.comm.rank == 0 else square)
        if fresh.comm.rank:
            assert square.astype(int).tolist() == [[0, 2], [1, 3]]
    assert fresh.reads == 6


def test_memory_that_is_shared_is_seen_each_time(fresh: Counted | None) -> None:
    if fresh is None:
        return
    comm, size, room = fresh.comm, fresh.comm.size, np.zeros(40)
    for turn in range(6):
        comm.Allreduce(room[0:8:2], room[20:28:2])
        with pytest.raises(cr.UsageError, match="overlap"):
            comm.Allreduce(room[0:8:2], room[4:12:2])
        place = gaps([float(turn)] * 4)
        comm.Allreduce(place, place)  # made in place
        assert place.tolist() == [turn * size] * 4
        beside = np.full((4, 2), float(turn))
        comm.Allreduce(beside[:, 0], beside[:, 1])  # in one range, and of no element in common
        assert beside.tolist() == [[turn, turn * size]] * 4


def test_ops_and_types_are_told_apart(fresh: Counted | None) -> None:
    if fresh is None:
        return
    comm, size = fresh.comm, fresh.comm.size

    def least(source: Any, target: Any, _: MPI.Datatype) -> None:
        held = np.frombuffer(target)
        held[:] = np.minimum(held, np.frombuffer(source))

    own = MPI.Op.Create(least, commute=True)
    for _ in range(4):
        given, taken = gaps(np.full(4, comm.rank + 2.0)), gaps(np.zeros(4))
        for op, wanted in ((MPI.SUM, sum(range(2, size + 2))), (own, 2), (MPI.MAX, size + 1)):
            comm.Allreduce(given, taken, op)
            assert taken.tolist() == [wanted] * 4
    own.Free()
    with pytest.raises(cr.UsageError, match="null"):
        comm.Allreduce(given, taken, own)
    for _ in range(3):
        column = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
        held = np.full(6, float(comm.rank))
        for _ in range(4):
            comm.Bcast([held, 1, column])
        assert held.tolist() == [0.0, comm.rank] * 3
        column.Free()
        with pytest.raises(cr.UsageError, match="null"):
            comm.Bcast([held, 1, column])


def test_numbers_in_arrays_are_read_each_time(fresh: Counted | None) -> None:
    if fresh is None:
        return
    comm, size = fresh.comm, fresh.comm.size
    counts = np.ones(size, int)
    for turn in range(4):
        counts[:] = turn + 1
        taken = np.zeros(size * (turn + 1))
        comm.Alltoallv([np.ones(size * (turn + 1)), counts], [taken, counts])
        assert taken.sum() == taken.size
        comm.Reduce_scatter(np.ones(size * (turn + 1)), taken[: turn + 1], counts)
        assert taken[: turn + 1].tolist() == [size] * (turn + 1)
    for numbers in (counts, array("q", counts)):
        assert form_of("reduce_scatter", (taken, taken, numbers, MPI.SUM)) is None
        assert form_of("alltoallv", ([taken, numbers], [taken, [1] * size])) is None
    assert form_of("bcast", (taken, np.array(0))) is None
    assert form_of("bcast", (taken, True)) is None


def test_a_call_is_counted_alike_whatever_a_rank_passes(fresh: Counted | None) -> None:
    """First calls, races, and what follows them; the last rank's arrays have gaps."""
    if fresh is None or fresh.comm.size == 1:
        return
    comm, service = fresh.comm, fresh.comm._service
    service.chooser.try_all()
    odd = comm.rank == comm.size - 1
    kinds = [8, 60, 8, 400]
    for turn in range(400):
        count = kinds[turn % len(kinds)]
        given = gaps(np.ones(count)) if odd else np.ones(count)
        taken = gaps(np.zeros(count)) if odd else np.zeros(count)
        comm.Allreduce(given, taken, op=MPI.MAX if turn % 3 else MPI.SUM)
        assert taken.tolist() == [1 if turn % 3 else comm.size] * count
        left = service.chooser.calls_left("allreduce").tolist()
        library = sorted(service.shortcuts.library["allreduce"])
        assert len(set(map(str, service.plain.allgather((left, library))))) == 1
    tried = service.chooser.settled(Agreed("allreduce", size_class(64)))
    assert tried.trial is not None


def test_calls_of_an_attempt_are_read(fresh: Counted | None) -> None:
    if fresh is None:
        return
    place = gaps(np.ones(3))
    for _ in range(4):
        fresh.comm.Allreduce(MPI.IN_PLACE, place)
    reads = fresh.reads
    for attempt in fresh.comm.attempts():
        with attempt:
            fresh.comm.Allreduce(MPI.IN_PLACE, place)
    assert fresh.reads > reads


def test_options_of_a_block_hold(fresh: Counted | None) -> None:
    if fresh is None or fresh.comm.size == 1:
        return
    given, taken = gaps(np.ones(3)), gaps(np.zeros(3))
    for _ in range(4):
        fresh.comm.Allreduce(given, taken)
    with fresh.comm.using(algorithm="ring"):
        fresh.comm.Allreduce(given, taken)
    assert fresh.comm.statistics().algorithms["allreduce"]["ring"] == 1
