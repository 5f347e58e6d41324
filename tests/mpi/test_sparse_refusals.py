"""Sparse calls whose arguments are wrong on one rank: all hear, and the next call is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.sparse import (
    Route,
    SparseVector,
    allgather_chunks,
    reduce_scatter_chunks,
    topk_allreduce,
)

World = cr.Communicator


def _everywhere(world: World) -> np.ndarray:
    return np.ones((1, world.size), bool)


def _sum(world: World, value: float, wrong: bool) -> Any:
    vector: Any = None if wrong else SparseVector([0], [value], 4)
    return world.Allreduce_sparse(vector).values


def _largest(world: World, value: float, wrong: bool) -> Any:
    return topk_allreduce(world, np.full(4, value), 5 if wrong else 1)[0].values


def _chunks(world: World, value: float, wrong: bool) -> Any:
    owner = world.size - 1
    chunks = {} if wrong or world.rank != owner else {0: np.full(3, value * world.size)}
    return allgather_chunks(world, chunks, [owner], _everywhere(world))[0]


def _parts(world: World, value: float, wrong: bool) -> Any:
    parts = {} if wrong else {0: np.full(3, value)}
    found = reduce_scatter_chunks(world, parts, [0], _everywhere(world))
    return found.get(0, np.full(3, value * world.size))


def _routed(world: World, value: float, wrong: bool) -> Any:
    route = Route(world, [[-2 if wrong else 0]])
    return route.combine(route.dispatch([value])) * world.size


def _dispatched(world: World, value: float, wrong: bool) -> Any:
    route = Route(world, [[0]])
    return route.combine(route.dispatch([value] * (1 + wrong))) * world.size


def _combined(world: World, value: float, wrong: bool) -> Any:
    route = Route(world, [[world.size - 1]])
    rows = route.dispatch([value])
    return route.combine(rows.astype("M8[s]") if wrong else rows) * world.size


CALLS: dict[str, Callable[[World, float, bool], Any]] = {
    "Allreduce_sparse": _sum,
    "topk_allreduce": _largest,
    "allgather_chunks": _chunks,
    "reduce_scatter_chunks": _parts,
    "Route": _routed,
    "dispatch": _dispatched,
    "combine": _combined,
}


@pytest.mark.parametrize("name", CALLS)
def test_all_ranks_hear_of_wrong_arguments_and_go_on(
    comm: MPI.Intracomm, world: World, name: str
) -> None:
    call, refuses = CALLS[name], comm.rank == comm.size - 1
    for turn in range(1, 4):
        error: type[cr.Error] = cr.UsageError if refuses else cr.Disagreement
        with pytest.raises(error):
            call(world, 1.0, refuses)
        comm.Barrier()
        assert (call(world, float(turn), False) == turn * comm.size).all()


@pytest.mark.parametrize("name", CALLS)
def test_all_ranks_refuse(comm: MPI.Intracomm, world: World, name: str) -> None:
    call = CALLS[name]
    if name == "allgather_chunks" and comm.size > 1:
        pytest.skip("only the owner's chunks can be wrong")
    for turn in range(1, 4):
        with pytest.raises(cr.UsageError):
            call(world, 1.0, True)
        assert (call(world, float(turn), False) == turn * comm.size).all()


@pytest.mark.parametrize("name", ["Allreduce_sparse", "topk_allreduce"])
def test_ranks_that_disagree_hear_of_a_refusal_too(
    comm: MPI.Intracomm, world: World, name: str
) -> None:
    call = CALLS[name]
    if comm.size < 3:
        pytest.skip("needs three ranks")
    if comm.rank == 0:
        with pytest.raises(cr.Disagreement, match="int8"):
            world.Allreduce_sparse(SparseVector([0], np.ones(1, np.int8), 4))
    else:
        refuses = comm.rank == comm.size - 1
        with pytest.raises((cr.Disagreement, cr.UsageError)):
            call(world, 1.0, refuses)
    assert (call(world, 1.0, False) == comm.size).all()


@pytest.mark.parametrize("name", [name for name in CALLS if name[0] in "tarR"])
def test_a_communicator_of_mpi4py_is_refused(comm: MPI.Intracomm, name: str) -> None:
    plain: Any = comm
    with pytest.raises(cr.UsageError, match=r"closeranks\.init"):
        CALLS[name](plain, 1.0, False)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
def test_short_integers_wrap_around(comm: MPI.Intracomm, world: World, dtype: str) -> None:
    """The library may let them saturate."""
    values = np.full(64, np.iinfo(dtype).max, dtype)
    expected = np.zeros(64, dtype)
    for _ in range(comm.size):
        expected += values
    with world.using(algorithm="native"):
        found = world.Allreduce_sparse(SparseVector(np.arange(64), values, 64), algorithm="dense")
    assert (found.values == expected).all()


class Raises:
    """Something that raises when NumPy looks at it."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise ValueError("nothing here")


UNREADABLE: dict[str, Any] = {
    "ragged": [[1.0], [1.0, 2.0]],
    "raises": Raises(),
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
}


@pytest.mark.parametrize("given", UNREADABLE)
def test_what_numpy_cannot_read_is_refused(comm: MPI.Intracomm, world: World, given: str) -> None:
    wrong = UNREADABLE[given]
    error: type[cr.Error] = cr.UsageError if comm.rank == 0 else cr.Disagreement
    rows = np.ones((2, 1))
    route = Route(world, np.full((2, 1), comm.rank))
    for call, right in ((route.dispatch, rows), (route.combine, rows)):
        with pytest.raises(error):
            call(wrong if comm.rank == 0 else right)
    with pytest.raises(error):
        Route(world, wrong if comm.rank == 0 else [[0], [0]])
    chunks = {comm.rank: wrong if comm.rank == 0 else rows}
    owner, everywhere = np.arange(comm.size), np.ones((comm.size, comm.size), bool)
    with pytest.raises(error):
        allgather_chunks(world, chunks, owner, everywhere)
    assert (route.combine(route.dispatch(rows)) == 1).all()


def test_vectors_that_were_changed_are_refused(comm: MPI.Intracomm, world: World) -> None:
    vector = SparseVector([0, 2], [1.0, 2.0], 4)
    if comm.rank == 0:
        vector.values = np.ones(1)
    with pytest.raises(cr.UsageError if comm.rank == 0 else cr.Disagreement, match="1 values"):
        world.Allreduce_sparse(vector)
    assert world.allreduce(1) == comm.size
