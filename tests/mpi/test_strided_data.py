"""Collectives on data with gaps, long enough for the compiled loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.comms.buffers import packing

World = cr.Communicator
SIDE = 72
FACES = [(5, slice(None), slice(1, -1)), (slice(None), 5), (slice(None), slice(None), 5)]
EACH_FACE = pytest.mark.parametrize("face", FACES, ids=["axis 0", "axis 1", "axis 2"])


def _cube(rank: int) -> NDArray[np.float64]:
    """Small whole numbers that tell ranks and places apart."""
    numbers = (np.arange(SIDE**3) * 7 + rank * 11) % 101
    return numbers.reshape(SIDE, SIDE, SIDE).astype(float)


def _names(operation: str) -> list[str]:
    return ["native", "auto", *algorithms(operation)]


def _served(world: World, method: str, *arguments: Any, **keywords: Any) -> bool:
    """Make a call; False where the algorithm says that it cannot."""
    try:
        getattr(world, method)(*arguments, **keywords)
    except cr.UsageError as error:
        if "cannot:" not in str(error):
            raise
        return False
    return True


@contextmanager
def _untouched(cube: NDArray[np.float64], face: Any) -> Iterator[None]:
    """Check that nothing changes but a face."""
    others = np.ones(cube.shape, bool)
    others[face] = False
    before = cube[others]
    yield
    assert (cube[others] == before).all()


@EACH_FACE
def test_faces_are_reduced_into_faces(world: World, face: Any) -> None:
    expected = sum(_cube(rank)[face] for rank in range(world.size))
    for name in _names("allreduce"):
        mine, out = _cube(world.rank), np.full((SIDE,) * 3, -1.0)
        assert mine[face].nbytes > packing.LEAST
        with _untouched(out, face):
            if _served(world, "Allreduce", mine[face], out[face], algorithm=name):
                assert (out[face] == expected).all(), name
                assert (mine == _cube(world.rank)).all()
        with _untouched(mine, face):
            if _served(world, "Allreduce", MPI.IN_PLACE, mine[face], algorithm=name):
                assert (mine[face] == expected).all(), name


@EACH_FACE
def test_faces_are_broadcast_to_arrays_without_gaps(world: World, face: Any) -> None:
    for name in _names("bcast"):
        mine = _cube(world.rank)
        root = world.size - 1
        given = mine[face] if world.rank == root else np.empty(mine[face].shape)
        if _served(world, "Bcast", given, root, algorithm=name):
            assert (given == _cube(root)[face]).all(), name


def test_derived_datatypes_meet_arrays(world: World) -> None:
    column = MPI.DOUBLE.Create_subarray((SIDE,) * 3, (SIDE, SIDE, 1), (0, 0, 5)).Commit()
    backwards = MPI.DOUBLE.Create_hvector(SIDE * SIDE, 1, -8).Commit()
    for name in _names("bcast"):
        mine, out = _cube(world.rank), np.zeros(SIDE * SIDE)
        spec: Any = [mine, 1, column] if world.rank == 0 else out
        if _served(world, "Bcast", spec, 0, algorithm=name):
            found = mine[:, :, 5].reshape(-1) if world.rank == 0 else out
            assert (found == _cube(0)[:, :, 5].reshape(-1)).all(), name
        with pytest.raises(cr.UsageError, match="take bytes -"):
            world.Bcast([mine, 1, backwards], 0, algorithm="auto")
    column.Free()
    backwards.Free()


def test_rows_are_exchanged_out_of_gaps_and_into_gaps(world: World) -> None:
    size, rank = world.size, world.rank
    counts = [[(a + 2 * b) % 3 * 900 for b in range(size)] for a in range(size)]
    out, into = counts[rank], [row[rank] for row in counts]
    for name in _names("alltoallv"):
        given = np.zeros((max(sum(out), 1), 5))
        given[:, 1:4] = np.arange(given.shape[0])[:, None] * 10 + rank + np.array([0.1, 0.2, 0.3])
        taken = np.full((max(sum(into), 1), 7), -1.0)
        send: Any = [given[:, 1:4], [3 * n for n in out]]
        receive: Any = [taken[:, ::3], [3 * n for n in into]]
        if not _served(world, "Alltoallv", send, receive, algorithm=name):
            continue
        row = 0
        for source, count in enumerate(into):
            first = sum(counts[source][:rank])
            expected = np.arange(first, first + count) * 10 + source
            for column, place in enumerate((0, 3, 6)):
                found = taken[row : row + count, place]
                assert (found == expected + (0.1, 0.2, 0.3)[column]).all(), name
            row += count
        assert (taken[:, [1, 2, 4, 5]] == -1).all()


def test_vectors_of_a_derived_datatype(world: World) -> None:
    size, rank = world.size, world.rank
    every_other = MPI.INT64_T.Create_vector(300, 2, 4)
    kind = every_other.Create_resized(0, 300 * 4 * 8).Commit()
    for name in _names("allgatherv"):
        counts = [1 + (r + 1) % 2 * 4 for r in range(size)]
        mine = np.arange(counts[rank] * 1200, dtype=np.int64) + 10**6 * rank
        taken = np.full(sum(counts) * 1200, -1, np.int64)
        spec = [taken, counts, kind]
        if not _served(world, "Allgatherv", [mine, counts[rank], kind], spec, algorithm=name):
            continue
        all_of = [np.arange(n * 1200) + 10**6 * r for r, n in enumerate(counts)]
        expected = np.concatenate(all_of).reshape(-1, 4)
        assert (taken.reshape(-1, 4)[:, :2] == expected[:, :2]).all(), name
        assert (taken.reshape(-1, 4)[:, 2:] == -1).all(), name
    kind.Free()
    every_other.Free()


@pytest.mark.parametrize("name", ["auto", "native", "ring"])
def test_repeated_calls_pack_and_unpack_anew(world: World, name: str) -> None:
    for plain in (False, True):
        mine, out = _cube(world.rank), np.zeros((SIDE,) * 3)
        face = FACES[2]
        taken = np.zeros(out[face].shape) if plain else out[face]
        with world.Allreduce_init(mine[face], taken, algorithm=name) as operation:
            for step in range(20):
                mine[face] = step + world.rank
                operation.start()
                operation.wait(30)
                assert (taken == sum(step + rank for rank in range(world.size))).all()


@pytest.mark.parametrize("op", [MPI.SUM, cr.MEAN], ids=["sum", "mean"])
def test_repeated_calls_of_ranks_with_and_without_gaps_meet(world: World, op: Any) -> None:
    mine, out = _cube(world.rank), np.zeros((SIDE,) * 3)
    face: Any = FACES[2] if world.rank == 0 else 5
    with world.Allreduce_init(mine[face], out[face], op, algorithm="native") as operation:
        for step in range(5):
            mine[face] = step + world.rank
            operation.start()
            operation.wait(30)
            total = sum(step + rank for rank in range(world.size))
            assert (out[face] == (total / world.size if op is cr.MEAN else total)).all()


def test_requests_and_repeated_calls_unpack_at_the_end(world: World) -> None:
    mine, out = _cube(world.rank), np.zeros((SIDE,) * 3)
    face = FACES[2]
    with world.Allreduce_init(mine[face], out[face]) as operation:
        for step in range(3):
            mine[face] = step + world.rank
            operation.start()
            operation.wait(30)
            assert (out[face] == sum(step + rank for rank in range(world.size))).all()
    world.Ibcast(mine[face], 0).wait(30)
    assert (mine[face] == 2).all()
