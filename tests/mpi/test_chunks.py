"""Chunks on real ranks: who wants one gets it, and owners get the sums of parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr
from closeranks.collectives.sparse import allgather_chunks, reduce_scatter_chunks
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Disagreement, UsageError

World = cr.Communicator
Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(map(np.dtype, ("f4", "f8", "i4", "i8", "i1", BFLOAT16, "f2")))


@pytest.fixture(params=["one node", "two nodes"])
def nodes(comm: MPI.Intracomm | None, request: pytest.FixtureRequest) -> Iterator[World | None]:
    """A communicator whose ranks sit, as it believes, on one node or two."""
    if comm is None:  # this rank is not one of the test's
        yield None
        return
    ranks = list(range(comm.size))
    node = [rank % 2 if request.param == "two nodes" else 0 for rank in ranks]
    topology = Topology.from_groups(("node", "rank"), [node, ranks])
    with cr.init(comm, topology=topology) as opened:
        yield opened


def drawn(size: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 7))
    return rng.integers(0, size, count), rng.random((count, size)) < 0.5


def chunk(seed: int, number: int, rank: int) -> Array:
    """A chunk whose shape and type depend on its number, and whose values on the rank."""
    rng = np.random.default_rng([seed, number])
    shape = tuple(rng.integers(0, 4, rng.integers(0, 3)))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    return np.asarray(rng.integers(0, 5, shape) + rank).astype(dtype)


def assert_same(found: Array, expected: Array) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("algorithm", ["auto", "flat", "two_hops"])
def test_chunks_go_to_those_that_want_them(nodes: World, algorithm: str) -> None:
    me = nodes.rank
    for seed in (*range(6), *range(3)):
        owner, wanted = drawn(nodes.size, seed)
        mine = {c: chunk(seed, c, 0) for c in np.flatnonzero(owner == me).tolist()}
        found = allgather_chunks(nodes, mine, owner, wanted, algorithm=algorithm)
        assert list(found) == np.flatnonzero(wanted[:, me]).tolist()
        for number, array in found.items():
            assert_same(array, chunk(seed, number, 0))


@pytest.mark.parametrize("name", ["SUM", "PROD", "MIN", "MAX"])
def test_sums_go_to_owners(nodes: World, name: str) -> None:
    me, size = nodes.rank, nodes.size
    ufunc, op = getattr(np, name.lower()), getattr(MPI, name)
    for seed in (*range(6), *range(3)):
        owner, wanted = drawn(size, seed)
        parts = {c: chunk(seed, c, me) for c in np.flatnonzero(wanted[:, me]).tolist()}
        found = reduce_scatter_chunks(nodes, parts, owner, wanted, op)
        assert list(found) == np.flatnonzero((owner == me) & wanted.any(axis=1)).tolist()
        for number, array in found.items():
            terms = [chunk(seed, number, rank) for rank in np.flatnonzero(wanted[number]).tolist()]
            total = ufunc([term.astype("f8") for term in terms], axis=0)
            if array.dtype != np.int8:  # of these a product may wrap around
                assert_same(array, np.asarray(total).astype(terms[0].dtype))


def test_chunks_may_change_their_shape_from_call_to_call(world: World) -> None:
    owner, wanted = np.array([0]), np.ones((1, world.size), bool)
    for shape in ((2,), (3, 3), (3, 3), ()):
        x = np.full(shape, 5.0)
        found = allgather_chunks(world, {0: x} if world.rank == 0 else {}, owner, wanted)
        assert_same(found[0], x)
        found = reduce_scatter_chunks(world, {0: x}, owner, wanted)
        assert (found[0] == 5.0 * world.size).all() if world.rank == 0 else found == {}
    calls = world.statistics().calls
    assert calls["allgather_chunks"] == calls["reduce_scatter_chunks"] == 4


def test_sizes_are_told_once_for_calls_that_are_alike(world: World) -> None:
    owner, wanted = np.array([0]), np.ones((1, world.size), bool)
    told = []
    for x in (np.zeros(3), np.ones(3), np.zeros(4), np.ones(4)):
        allgather_chunks(world, {0: x} if world.rank == 0 else {}, owner, wanted)
        told.append(world.statistics().calls.get("alltoallv", 0))
    assert told == ([0] * 4 if world.size == 1 else [1, 1, 2, 2])


def test_chunks_of_any_type(world: World) -> None:
    owner, wanted = np.array([0, 0]), np.ones((2, world.size), bool)
    given = {0: np.array([b"ab", b"c"]), 1: np.array([(1, 2.0)], "i1,f8")}
    found = allgather_chunks(world, given if world.rank == 0 else {}, owner, wanted)
    assert_same(found[0], given[0])
    assert_same(found[1], given[1])


def test_bad_input(world: World) -> None:
    size, me = world.size, world.rank
    owner, wanted = np.arange(size), np.ones((size, size), bool)
    x = np.zeros(2)

    def wrong(says: str, call: Any, *arguments: Any) -> None:
        with pytest.raises(UsageError, match=says):
            call(world, *arguments)

    wrong(f"owner {size} of chunk 0", allgather_chunks, {me: x}, owner + size, wanted)
    wrong("owner -1 of chunk 0", allgather_chunks, {me: x}, owner - 1, wanted)
    wrong("owner of float64", allgather_chunks, {me: x}, owner / 1, wanted)
    wrong("wanted of bool", allgather_chunks, {me: x}, owner, wanted[:, 1:])
    wrong("wanted of int64", allgather_chunks, {me: x}, owner, wanted.astype(int))
    wrong(f"no chunk {me}", allgather_chunks, {}, owner, wanted)
    wrong(f"chunk {size}", allgather_chunks, {me: x, size: x}, owner, wanted)
    wrong("object", allgather_chunks, {me: np.array(None)}, owner, wanted)
    told = np.dtype("f4", metadata={"unit": lambda: None})
    for kind in ("V0", told, np.dtype([("a", told)])):
        wrong(
            "has bytes and can be pickled", allgather_chunks, {me: np.empty(2, kind)}, owner, wanted
        )
    wrong("owner is .* no array", allgather_chunks, {me: x}, [[0], [1, 2]], wanted)
    wrong("wanted is .* no array", allgather_chunks, {me: x}, owner, [[0], [1, 2]])
    wrong("no chunk 0", reduce_scatter_chunks, {}, owner, wanted)
    wrong(
        "one of", reduce_scatter_chunks, dict.fromkeys(range(size), np.array(b"a")), owner, wanted
    )
    wrong("op", reduce_scatter_chunks, dict.fromkeys(range(size), x), owner, wanted, MPI.BOR)
    assert list(allgather_chunks(world, {me: x}, owner, wanted)) == list(range(size))


def test_ranks_that_disagree(world: World) -> None:
    if world.size == 1:
        return
    size, me = world.size, world.rank
    is_odd = me == 1
    owner, wanted = np.zeros(1, int), np.ones((1, size), bool)
    x = np.zeros(2)
    mine = {0: x} if me == 0 else {}
    with pytest.raises(Disagreement):
        allgather_chunks(world, mine, owner + is_odd, wanted)
    with pytest.raises(Disagreement):
        allgather_chunks(world, mine, owner, wanted ^ is_odd)
    with pytest.raises(Disagreement):
        reduce_scatter_chunks(world, {0: x}, owner, wanted, MPI.MAX if is_odd else MPI.SUM)
    with pytest.raises(Disagreement, match="chunk 0"):
        reduce_scatter_chunks(world, {0: np.zeros(2 + is_odd)}, owner, wanted)
    with pytest.raises(Disagreement, match="float32"):
        reduce_scatter_chunks(world, {0: np.zeros(2, "f4" if is_odd else "f8")}, owner, wanted)
    assert list(allgather_chunks(world, mine, owner, wanted)) == [0]
