"""Routes on real ranks: rows arrive where they are wanted, and sums come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr
from closeranks.collectives.sparse import Route
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Disagreement, UsageError

World = cr.Communicator
Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(map(np.dtype, ("f4", "f8", "i4", "i8", BFLOAT16, "f2", "u1", "c16")))
SHAPES = ((), (1,), (3,), (2, 5), (64,))


@pytest.fixture(params=["one node", "two nodes", "uneven nodes"])
def nodes(comm: MPI.Intracomm | None, request: pytest.FixtureRequest) -> Iterator[World | None]:
    """A communicator whose ranks sit, as it believes, on nodes in some way."""
    if comm is None:  # this rank is not one of the test's
        yield None
        return
    ranks = list(range(comm.size))
    node = {
        "one node": [0 for _ in ranks],
        "two nodes": [rank % 2 for rank in ranks],
        "uneven nodes": [0 if rank == 1 else 1 for rank in ranks],
    }[request.param]
    topology = Topology.from_groups(("node", "rank"), [node, ranks])
    with cr.init(comm, topology=topology) as opened:
        yield opened


def drawn(rank: int, size: int, seed: int) -> Array:
    """Destinations of a rank's tokens, which all ranks can work out."""
    rng = np.random.default_rng([seed, rank])
    return rng.integers(-1, size, (rng.integers(0, 9), rng.integers(1, 4)))


def row(rank: int, token: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.full(shape, 1 + 7 * rank + token).astype(dtype)


def rows(rank: int, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    made = [row(rank, token, shape, dtype) for token in range(count)]
    return np.stack(made) if made else np.empty((0, *shape), dtype)


def arrivals(size: int, seed: int, rank: int) -> list[tuple[int, int]]:
    return [
        (source, token)
        for source in range(size)
        for token, ranks in enumerate(drawn(source, size, seed).tolist())
        if rank in ranks
    ]


@pytest.mark.parametrize("algorithm", ["auto", "flat", "two_hops"])
def test_random_routes(nodes: World, algorithm: str) -> None:
    me, size = nodes.rank, nodes.size
    for seed in range(6):
        there = drawn(me, size, seed)
        route = Route(nodes, there, algorithm=algorithm)
        wanted = arrivals(size, seed, me)
        assert [*zip(route.sources.tolist(), route.tokens.tolist(), strict=True)] == wanted
        chance = np.random.default_rng(seed)
        for _ in range(3):
            shape = SHAPES[chance.integers(len(SHAPES))]
            dtype = DTYPES[chance.integers(len(DTYPES))]
            x = rows(me, len(there), shape, dtype)
            y = route.dispatch(x)
            assert (y.dtype, y.shape) == (dtype, (len(wanted), *shape))
            for found, (source, token) in zip(y, wanted, strict=True):
                assert (found == row(source, token, shape, dtype)).all()
            times = [len({*ranks} - {-1}) for ranks in there.tolist()]
            back = route.combine(y)
            assert (back.dtype, back.shape) == (dtype, x.shape)
            for found, token, n in zip(back, x, times, strict=True):
                assert (found == token * np.array(n, dtype)).all()


def test_rows_of_no_numbers_travel_too(world: World) -> None:
    kind = np.dtype([("a", "i2"), ("b", "S3")])
    x = np.array([(world.rank, b"abc")] * 2, kind)
    y = Route(world, [[0], [world.size - 1]]).dispatch(x)
    assert y.dtype == kind
    assert sorted(set(y["a"].tolist())) == (
        list(range(world.size)) if world.rank in (0, world.size - 1) else []
    )
    assert Route(world, [[0]] * 2).dispatch(np.empty((2, 0, 3))).shape == (
        2 * world.size * (world.rank == 0), 0, 3,
    )  # fmt: skip


def test_onward_routes_add_at_the_first_source(nodes: World) -> None:
    me, size = nodes.rank, nodes.size
    for seed in range(4):
        there = drawn(me, size, seed)
        route = Route(nodes, there)
        x = rows(me, len(there), (3,), np.dtype("f8"))
        y = route.dispatch(x)
        for hop in range(3):
            rng = np.random.default_rng([seed, hop, me])
            route = route.then(rng.integers(-1, size, (route.arrived, 2)))
            y = route.dispatch(y)
            whence = zip(route.sources.tolist(), route.tokens.tolist(), strict=True)
            for found, one in zip(y, whence, strict=True):
                assert (found == row(*one, (3,), y.dtype)).all()
        back = route.combine(y)
        copies = np.zeros((size, 9), np.int64)
        np.add.at(copies, (route.sources, route.tokens), 1)
        nodes.Allreduce(MPI.IN_PLACE, copies)
        assert (back == x * copies[me, : len(x), None]).all()


def test_the_same_rows_add_up_to_the_same_bits(nodes: World) -> None:
    rng = np.random.default_rng(nodes.rank)
    route = Route(nodes, rng.integers(0, nodes.size, (50, 4)))
    y = rng.standard_normal((route.arrived, 7), np.float32)
    first = route.combine(y)
    assert all(route.combine(y).tobytes() == first.tobytes() for _ in range(5))


def test_a_deterministic_communicator_adds_in_rank_order(comm: MPI.Intracomm) -> None:
    ranks = list(range(comm.size))
    topology = Topology.from_groups(("node", "rank"), [[rank % 2 for rank in ranks], ranks])
    terms = np.resize(np.array([1e8, 1.0, -1e8, 1.0], np.float32), comm.size)
    with cr.init(comm, topology=topology, deterministic=True) as world:
        route = Route(world, [ranks])
        found = route.combine(np.repeat(terms[comm.rank], route.arrived))
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    assert found.tolist() == [total]


def test_no_tokens_at_all(world: World) -> None:
    route = Route(world, [])
    assert route.arrived == 0
    assert route.combine(route.dispatch(np.empty((0, 3)))).shape == (0, 3)


def test_statistics_count_calls_and_bytes(nodes: World) -> None:
    if nodes.size == 1:
        return
    route = Route(nodes, np.full((4, 1), (nodes.rank + 1) % nodes.size))
    before = sum(nodes.statistics().bytes_per_level.values())
    route.combine(route.dispatch(np.zeros((4, 1000), np.float64)))
    after = nodes.statistics()
    assert after.calls["route_dispatch"] == after.calls["route_combine"] == 1
    assert sum(after.bytes_per_level.values()) - before >= 2 * 4 * 8000


@pytest.mark.parametrize(
    ("destinations", "says"),
    [
        ([[0], [99]], "destination 99 of token 1"),
        ([[-2]], "destination -2 of token 0"),
        ([[0.5]], "whole numbers"),
        ([0, 0], "shape"),
    ],
)
def test_bad_destinations(world: World, destinations: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Route(world, destinations)


def test_wrong_numbers_of_rows(world: World) -> None:
    route = Route(world, [[0], [0]])
    with pytest.raises(UsageError, match=f"3 rows on rank {world.rank}; give 2"):
        route.dispatch(np.zeros((3, 2)))
    with pytest.raises(UsageError, match="give"):
        route.combine(np.zeros((route.arrived + 1, 2)))
    with pytest.raises(UsageError, match="object"):
        route.dispatch(np.array([None, None]))
    with pytest.raises(UsageError, match="one of"):
        route.combine(np.zeros(route.arrived, "S3"))
    with pytest.raises(UsageError, match="arrived"):
        route.then(np.zeros((route.arrived + 1, 1), int))
    with pytest.raises(UsageError, match="algorithm"):
        Route(world, [[0]], algorithm="ring")


def test_ranks_that_disagree(world: World) -> None:
    if world.size == 1:
        return
    is_odd = world.rank == 1
    route = Route(world, [[0], [0]])
    with pytest.raises(Disagreement):
        route.dispatch(np.zeros((2, 2 + is_odd)))
    with pytest.raises(Disagreement):
        route.dispatch(np.zeros((2, 2), "f4" if is_odd else "f8"))
    with pytest.raises(Disagreement):
        route.combine(np.zeros((route.arrived, 1 + is_odd)))
    with pytest.raises(Disagreement):
        Route(world, [[0]], algorithm="flat" if is_odd else "auto")
    assert len(route.dispatch(np.zeros((2, 2)))) == route.arrived


@pytest.mark.parametrize("what", ["another route", "another method"])
def test_ranks_in_unlike_calls_are_told(world: World, what: str) -> None:
    if world.size == 1:
        return
    one, other = (Route(world, [[turn], [-1]]) for turn in range(2))
    is_last = world.rank == world.size - 1
    chosen = other if is_last and what == "another route" else one
    combines = is_last and what == "another method"
    with pytest.raises(Disagreement, match="Route"):
        chosen.combine(np.ones(chosen.arrived)) if combines else chosen.dispatch(np.ones(2))
