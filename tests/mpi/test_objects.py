"""Calls with objects are as mpi4py's, where ranks may die as elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives import objects

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
    monkeypatch.setattr(objects, "_CAREFUL", careful)
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
    monkeypatch.setattr(objects, "_CAREFUL", careful)
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


@pytest.mark.parametrize("algorithm", ["nccl", "native", "ring"])
def test_what_arrays_are_to_go_by_is_not_for_them(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(objects, "_CAREFUL", True)
    with world.using(algorithm=algorithm):
        assert world.bcast("all", 0) == "all"
        assert world.allgather(world.rank) == list(range(world.size))


def test_they_have_all_the_time(world: cr.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_CAREFUL", True)
    with world.using(timeout_s=0.2):
        if world.rank == 0:
            time.sleep(0.7)
        assert world.allgather(world.rank) == list(range(world.size))


@pytest.mark.parametrize("careful", CAREFUL)
def test_as_many_as_there_are_ranks(
    world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    monkeypatch.setattr(objects, "_CAREFUL", careful)
    with pytest.raises(ValueError):  # noqa: PT011 - its text is mpi4py's, or ours
        world.alltoall([0] * (world.size + 1))


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
    monkeypatch.setattr(objects, "_CAREFUL", True)
    monkeypatch.setattr(type(world), "explained", lambda _, name, error: RuntimeError(name, error))
    monkeypatch.setattr(type(world), name.capitalize(), lambda *_: None)
    if world.size > 1:
        with pytest.raises(RuntimeError, match=name):
            CALLS[name](world)
