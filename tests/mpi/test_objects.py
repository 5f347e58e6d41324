"""Calls with objects are as mpi4py's, where ranks may die as elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.communicator import object_calls
from closeranks.comms.mpi import messages

CAREFUL = [False, True]
OPS = [MPI.SUM, MPI.MAX, lambda one, other: [*one, *other]]


@pytest.mark.parametrize("op", OPS, ids=["sum", "max", "own"])
@pytest.mark.parametrize("careful", CAREFUL)
def test_they_are_reduced_in_the_order_of_the_ranks(
    world: cr.Communicator,
    monkeypatch: pytest.MonkeyPatch,
    op: Callable[[Any, Any], Any],
    careful: bool,
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", careful)
    rank, size = world.rank, world.size
    given = [rank, str(rank)]
    every = [[other, str(other)] for other in range(size)]
    folded = [every[0]]
    for one in every[1:]:
        folded.append(op(folded[-1], one))
    assert world.allreduce(given, op) == folded[-1]
    assert world.scan(given, op) == folded[rank]
    assert world.exscan(given, op) == (folded[rank - 1] if rank else None)
    for root in range(size):
        assert world.reduce(given, op, root) == (folded[-1] if rank == root else None)


@pytest.mark.parametrize("careful", CAREFUL)
@pytest.mark.parametrize("length", [0, 1, 70_000])
def test_they_go_where_they_belong(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, careful: bool, length: int
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", careful)
    rank, size = world.rank, world.size

    def one(of: int, to: int = 0) -> tuple[int, int, bytes]:
        return of, to, bytes(length * (of + 1))

    assert world.allgather(one(rank)) == [one(of) for of in range(size)]
    assert world.alltoall([one(rank, to) for to in range(size)]) == [
        one(of, rank) for of in range(size)
    ]
    assert world.alltoall(np.arange(size)) == [rank] * size
    for root in range(size):
        is_root = rank == root
        assert world.scatter(np.arange(size) if is_root else None, root) == rank
        assert world.bcast(one(root) if is_root else None, root) == one(root)
        every = [one(of) for of in range(size)]
        assert world.gather(one(rank), root) == (every if is_root else None)
        assert world.scatter(every if is_root else None, root) == one(rank)


@pytest.mark.parametrize("careful", CAREFUL)
def test_long_ones_go_by_plans(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", careful)
    monkeypatch.setattr(messages, "LONGEST", 1 << 10)
    rank, size = world.rank, world.size
    every = [bytes([of]) * (1500 + 1000 * of) for of in range(size)]
    root = size - 1
    assert world.bcast(every[root] if rank == root else None, root) == every[root]
    assert world.gather(every[rank], root) == (every if rank == root else None)
    assert world.scatter(every if rank == root else None, root) == every[rank]
    assert world.allgather(every[rank]) == every
    assert world.alltoall(every) == [every[rank]] * size
    ours = world.statistics().calls
    assert size == 1 or {"bcast", "gatherv", "scatterv", "allgatherv", "alltoallv"} <= set(ours)


@pytest.mark.parametrize("algorithm", ["nccl", "native", "ring"])
def test_what_arrays_are_to_go_by_is_not_for_them(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", True)
    with world.using(algorithm=algorithm):
        assert world.bcast("all", 0) == "all"
        assert world.allgather(world.rank) == list(range(world.size))


def test_they_have_all_the_time(world: cr.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", True)
    with world.using(timeout_s=0.2):
        if world.rank == 0:
            time.sleep(0.7)
        assert world.allgather(world.rank) == list(range(world.size))


def _wrong(_: object, __: object) -> object:
    raise ZeroDivisionError("wrong")


#: Calls in which the last rank passes what it may not: name -> call, given that rank or None.
LAST: dict[str, Callable[[Any, bool], object]] = {
    "bcast": lambda comm, bad: comm.bcast(_wrong.__code__ if bad else 1, comm.size - 1),
    "gather": lambda comm, bad: comm.gather(_wrong.__code__ if bad else 1),
    "allgather": lambda comm, bad: comm.allgather(_wrong.__code__ if bad else 1),
    "scatter": lambda comm, bad: comm.scatter(
        [_wrong.__code__ if bad else 1] * comm.size, comm.size - 1
    ),
    "scatter of too few": lambda comm, bad: comm.scatter([1] * (comm.size - bad), comm.size - 1),
    "scatter of none": lambda comm, bad: comm.scatter(7 if bad else None, comm.size - 1),
    "alltoall": lambda comm, bad: comm.alltoall([_wrong.__code__ if bad else 1] * comm.size),
    "alltoall of too many": lambda comm, bad: comm.alltoall([1] * (comm.size + bad)),
    "allreduce": lambda comm, bad: comm.allreduce([_wrong.__code__] if bad else [1]),
    "allreduce of others": lambda comm, bad: comm.allreduce([1] if bad else 1),
    "allreduce that fails": lambda comm, bad: comm.allreduce(int(bad), _wrong),
    "reduce": lambda comm, bad: comm.reduce([_wrong.__code__] if bad else [1]),
    "reduce of others": lambda comm, bad: comm.reduce("x" if bad else 1, MPI.SUM, comm.size - 1),
    "scan of others": lambda comm, bad: comm.scan("x" if bad else 1),
    "exscan that fails": lambda comm, bad: comm.exscan(int(bad), _wrong),
}


@pytest.mark.parametrize("name", LAST)
@pytest.mark.parametrize("careful", CAREFUL)
def test_what_one_rank_may_not_pass_keeps_nobody_waiting(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, careful: bool, name: str
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", careful)
    size, is_last = world.size, world.rank == world.size - 1
    met: Exception | None = None
    try:
        LAST[name](world, is_last)
    except Exception as error:
        met = error
    assert world.allgather(world.rank) == list(range(size)), "the next call is not crossed"
    everybody = world.allgather(None if met is None else str(met))
    if size == 1:  # whose own fault is its own error, where there is one
        return
    told = [said for said in everybody if said is not None]
    assert told or (name.startswith("exscan") and size == 2), everybody
    if name in {"bcast", "allgather", "scatter", "alltoall", "alltoall of too many", "allreduce",
                "allreduce of others", "scatter of too few", "scatter of none"}:  # fmt: skip
        assert len(told) == size, everybody
    if met is not None and not is_last and isinstance(met, cr.UsageError):
        assert "has given up" in str(met)


@pytest.mark.parametrize("op", [3, "sum", MPI.OP_NULL], ids=["number", "name", "null"])
@pytest.mark.parametrize("name", ["allreduce", "reduce", "scan", "exscan"])
def test_what_cannot_combine_is_refused_on_entry(
    world: cr.Communicator, name: str, op: object
) -> None:
    with pytest.raises(cr.UsageError, match="op is"):
        getattr(world, name)(1.0, op)
    for call in (world.bcast, world.gather, world.reduce):
        with pytest.raises(MPI.Exception) as met:
            call([1], root=world.size)
        assert met.value.Get_error_class() == MPI.ERR_ROOT
        assert f"root {world.size} of {world.size} ranks" in str(met.value.__cause__)
    none: Any = None
    assert world.allreduce(1, none) == world.size, "None is the sum, as mpi4py has it"


@pytest.mark.parametrize("careful", CAREFUL)
def test_the_mean_of_numbers_and_arrays(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", careful)
    rank, size = world.rank, world.size
    mean = sum(range(size)) / size
    assert world.allreduce(rank, cr.MEAN) == mean
    assert world.allreduce(np.full(3, rank), cr.MEAN).tolist() == [mean] * 3
    assert world.scan(float(rank), op=cr.MEAN) == rank / 2
    assert world.exscan(rank, cr.MEAN) == ((rank - 1) / 2 if rank else None)
    for root in range(size):
        assert world.reduce(rank, cr.MEAN, root) == (mean if rank == root else None)
    with pytest.raises(cr.UsageError, match="a list has no mean"):
        world.allreduce([rank], cr.MEAN)


def test_a_serializer_of_plain_data_will_do(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps: Any = lambda one: json.dumps(one).encode()  # noqa: E731
    loads: Any = lambda data: json.loads(bytes(data))  # noqa: E731
    plain = MPI.Pickle(dumps, loads)
    monkeypatch.setattr(MPI, "pickle", plain)
    size = world.size
    assert world.bcast({"one": [1]}) == {"one": [1]}
    assert world.allgather([world.rank]) == [[rank] for rank in range(size)]
    assert world.allreduce([1]) == [1] * size


CALLS: dict[str, Callable[[Any], object]] = {
    "allgather": lambda comm: comm.allgather("x"),
    "alltoall": lambda comm: comm.alltoall(["x"] * comm.size),
    "gather": lambda comm: comm.gather("x", comm.rank),
    "bcast": lambda comm: comm.bcast("x", (comm.rank + 1) % comm.size),
    "scatter": lambda comm: comm.scatter(["x"] * comm.size, comm.rank),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_has_not_come_is_a_death(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(object_calls, "_CAREFUL", True)
    monkeypatch.setattr(world._service, "explained", lambda name, error: RuntimeError(name, error))
    asked = "Allgather" if name == "gather" else name.capitalize()
    monkeypatch.setattr(type(world), asked, lambda *_: None)
    if world.size > 1:
        with pytest.raises(RuntimeError, match=name):
            CALLS[name](world)
