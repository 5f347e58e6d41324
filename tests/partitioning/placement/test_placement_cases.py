"""Fixed cases, the size of a large machine, grids, and what is refused."""

from __future__ import annotations

import resource
import time
import tracemalloc
from math import inf, nan, prod
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError
from closeranks.partitioning import Mesh, Volume, cartesian, place, place_graph
from tests.partitioning.placement import brute_force

LINKS = {
    "site": Link(100e-6, 5.96e6),
    "node": Link(60e-6, 23.4e6),
    "rank": Link(1e-6, 5e9),
}
T = Topology.regular(site=2, node=2, rank=2).with_links(LINKS)
LARGE = Topology.regular(site=4, node=512, rank=8)


@pytest.mark.parametrize(
    ("axes", "volumes", "least"),
    [
        (
            {"a": 2, "b": 2, "c": 2},
            {"a": Volume(4e6, "ring"), "b": Volume(1e6, "ring"), "c": Volume(64e3, "line")},
            21,
        ),
        ({"a": 2, "b": 4}, {"a": Volume(4e6, "all"), "b": Volume(256e3, "ring")}, 31),
        ({"a": 4, "b": 2}, {"a": Volume(2e6, "ring"), "b": Volume(256e3, "ring")}, 2.6),
    ],
)
def test_it_pays(axes: dict[str, int], volumes: dict[str, Volume], least: float) -> None:
    best = place(volumes, T, axes=axes)[0]
    assert best.exact
    assert best.default.seconds / best.cost.seconds >= least


def test_prices_of_named_orders() -> None:
    volumes = {"a": Volume(4e6, "ring"), "b": Volume(1e6, "ring"), "c": Volume(64e3, "line")}
    texts = ("04261537", "07162435", "02461357", "03247156", "01234567")
    axes = {"a": 2, "b": 2, "c": 2}
    meshes = [Mesh(axes, T, [*map(int, text)]) for text in texts]
    prices = [round(1000 * mesh.cost(volumes).seconds) for mesh in meshes]
    assert prices == pytest.approx([129, 385, 678, 1700, 2770], rel=0.01)


def test_the_best_differ() -> None:
    volumes = {"a": Volume(4e6, "ring"), "b": Volume(1e6, "ring"), "c": Volume(64e3, "line")}
    found = place(volumes, T, axes={"a": 2, "b": 2, "c": 2}, top=5)
    assert len({str(one.cost) for one in found}) == len(found) == 5
    assert [one.exact for one in found] == [True, False, False, False, False]
    larger = Topology.regular(node=8, rank=8)
    volumes = {"a": Volume(4e6, "ring"), "b": Volume(1e6, "all")}
    found = place(volumes, larger, axes={"a": 8, "b": 8}, top=3)
    seconds = [one.cost.seconds for one in found]
    assert seconds == sorted(seconds)
    assert 2 <= len(found) <= 3


@pytest.mark.parametrize("sizes", [(8, 16, 128), (32, 32, 16)])
def test_a_large_machine_is_placed_at_once(sizes: tuple[int, ...]) -> None:
    axes = dict(zip("abc", sizes, strict=True))
    for pattern in brute_force.PATTERNS:
        volumes = {name: Volume(1e6 * size, pattern) for name, size in axes.items()}
        before = resource.getrusage(resource.RUSAGE_SELF)
        best = place(volumes, LARGE, axes=axes)[0]
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 1.0
        assert best.cost.seconds <= best.default.seconds
        tracemalloc.start()
        try:
            place(volumes, LARGE, axes=axes)
            assert tracemalloc.get_traced_memory()[1] <= 64 << 20
        finally:
            tracemalloc.stop()


def test_a_grid_that_really_reorders() -> None:
    ranks = np.arange(8)
    table = [ranks % 4 // 2, ranks % 4, ranks]
    dealt = Topology.from_groups(("site", "node", "rank"), table, LINKS)
    shape = (256, 32, 256)
    found = cartesian(shape, dealt)
    grid = tuple(found.mesh.axes.values())
    kept = np.arange(8).reshape(2, 2, 2)  # Dims_create(8, 3), and ranks in their old order
    assert _over(shape, found.mesh.ranks, dealt) <= 0.25 * _over(shape, kept, dealt)
    assert [*found.mesh.axes] == ["d0", "d1", "d2"]
    assert prod(grid) == 8
    assert found.exact


def _over(shape: tuple[int, ...], ranks: Any, machine: Topology) -> int:
    """Add up the bytes of all faces between two sites."""
    part = [-(-n // p) for n, p in zip(shape, ranks.shape, strict=True)]
    total = 0
    for axis in range(ranks.ndim):
        rolled = np.moveaxis(ranks, axis, 0)
        site = machine.groups[0]
        crosses = (site[rolled[1:]] != site[rolled[:-1]]).sum()
        total += 2 * int(crosses) * prod(part[:axis] + part[axis + 1 :]) * 8
    return total


def _grids(size: int, axes: int) -> list[tuple[int, ...]]:
    if axes == 1:
        return [(size,)]
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [(d, *rest) for d in divisors for rest in _grids(size // d, axes - 1)]


@pytest.mark.parametrize("case", range(12))
def test_cartesian_finds_the_best_grid_and_order(case: int) -> None:
    draw = np.random.default_rng([5, case])
    machine = [T, *brute_force.irregular_machines()][case]
    machine = machine.with_links({name: brute_force.link(draw) for name in machine.levels})
    shape = tuple(int(n) for n in draw.choice([8, 30, 64, 300], 1 + case % 3))
    halo = draw.integers(1, 3, len(shape)).tolist()
    periodic = draw.integers(0, 2, len(shape)).astype(bool).tolist()
    found = cartesian(shape, machine, halo=halo, periodic=periodic, itemsize=4)
    prices = {}
    for grid in _grids(machine.size, len(shape)):
        part = [-(-n // p) for n, p in zip(shape, grid, strict=True)]
        volumes = {
            f"d{k}": Volume(
                4 * halo[k] * prod(part[:k] + part[k + 1 :]), "torus" if periodic[k] else "line"
            )
            for k in range(len(grid))
        }
        axes = {f"d{k}": size for k, size in enumerate(grid)}
        prices[grid] = place(volumes, machine, axes=axes)[0].cost.seconds
        if grid == tuple(found.mesh.axes.values()):
            assert found.default == Mesh(axes, machine).cost(volumes)
            assert found.cost == Mesh(axes, machine, found.mesh.ranks).cost(volumes)
    assert found.cost.seconds == pytest.approx(min(prices.values()), rel=1e-9, abs=0)
    assert found.exact


def test_no_rank_is_left_without_elements_if_it_can_be_helped() -> None:
    machine = Topology.regular(node=2, rank=4)
    assert dict(cartesian((2, 1000), machine).mesh.axes)["d0"] <= 2
    assert dict(cartesian((2, 2, 2), machine).mesh.axes) == {"d0": 2, "d1": 2, "d2": 2}
    assert prod(cartesian((3, 1), machine).mesh.axes.values()) == 8  # there is no such grid


def test_dims_are_kept_as_mpi_keeps_them() -> None:
    machine = Topology.regular(node=4, rank=4)
    found = cartesian((64, 64, 64), machine, dims=(0, 8, None))
    assert found.mesh.axes["d1"] == 8
    assert dict(cartesian((64, 64), machine, dims=[2, 8]).mesh.axes) == {"d0": 2, "d1": 8}


def test_a_large_grid_is_found_soon() -> None:
    before = time.process_time()
    best = cartesian((1000, 1000, 1000), Topology.regular(site=4, node=32, rank=8))
    assert time.process_time() - before <= 2.0
    assert best.cost.seconds < best.default.seconds


def test_sparse_matrices_count_as_dense_ones() -> None:
    draw = np.random.default_rng(3)
    weights = draw.integers(0, 10**6, (8, 8)) * (draw.random((8, 8)) < 0.4)
    found = place_graph(weights, T)
    for kind in (sparse.csr_array, sparse.coo_matrix, sparse.dok_array):
        assert place_graph(kind(weights), T) == found
    twice = sparse.coo_array((np.r_[1.0, 1.0], ([0, 0], [5, 5])), shape=(8, 8))
    assert place_graph(twice, T).cost.bytes_per_level["rank"] == 2


def test_nothing_sent_costs_nothing() -> None:
    assert place({}, LARGE, axes={"a": LARGE.size})[0].cost.seconds == 0
    best = place_graph(np.eye(8), T)
    assert (best.cost.seconds, best.exact) == (0, True)
    alone = Topology.regular(rank=1)
    assert cartesian((5, 5), alone, periodic=True).mesh.size == 1
    assert place_graph([[3.0]], alone).mesh.size == 1


def test_a_flat_machine_keeps_its_order() -> None:
    best = place({"a": Volume(10, "ring")}, Topology.regular(rank=100), axes={"a": 100})[0]
    assert best.exact
    assert best.mesh.ranks.tolist() == [*range(100)]


AXES = {"a": 2, "b": 4}
RING = Volume(100, "ring")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: place({"c": RING}, T, axes=AXES),
        lambda: place({"a": Volume(1, "star")}, T, axes=AXES),
        lambda: place({"a": Volume(-1, "ring")}, T, axes=AXES),
        lambda: place({"a": Volume(inf, "ring")}, T, axes=AXES),
        lambda: place({"a": Volume(nan, "ring")}, T, axes=AXES),
        lambda: place({"a": 100}, T, axes=AXES),  # type: ignore[dict-item]
        lambda: place({"a": RING}, T, axes={"a": 0, "b": 8}),
        lambda: place({"a": RING}, T, axes={"a": -2, "b": -4}),
        lambda: place({"a": RING}, T, axes={"a": 2, "b": 3}),
        lambda: place({"a": RING}, T, axes={}),
        lambda: place({"a": RING}, T, axes=AXES, top=0),
        lambda: place({"a": RING}, T, axes=AXES, top=1.5),  # type: ignore[arg-type]
        lambda: place({"a": RING}, None, axes=AXES),  # type: ignore[arg-type]
        lambda: place_graph(np.ones((8, 7)), T),
        lambda: place_graph(np.ones((7, 7)), T),
        lambda: place_graph(np.ones(64), T),
        lambda: place_graph([[1, 2], [3]], T),
        lambda: place_graph("bytes", T),
        lambda: place_graph(-np.ones((8, 8)), T),
        lambda: place_graph(np.full((8, 8), nan), T),
        lambda: place_graph(np.full((8, 8), inf), T),
        lambda: place_graph(np.ones((8, 8), dtype=complex), T),
        lambda: place_graph(sparse.csr_array(np.ones((7, 8))), T),
        lambda: place_graph(sparse.csr_array(-np.ones((8, 8))), T),
        lambda: place_graph(np.ones((8, 8)), "machine"),  # type: ignore[arg-type]
        lambda: cartesian((), T),
        lambda: cartesian((0, 8), T),
        lambda: cartesian((8, -8), T),
        lambda: cartesian("88", T),  # type: ignore[arg-type]
        lambda: cartesian(8, T),  # type: ignore[arg-type]
        lambda: cartesian((8, 8), T, halo=-1),
        lambda: cartesian((8, 8), T, halo=(1, 1, 1)),
        lambda: cartesian((8, 8), T, halo=1.5),  # type: ignore[arg-type]
        lambda: cartesian((8, 8), T, periodic=(True,)),
        lambda: cartesian((8, 8), T, itemsize=0),
        lambda: cartesian((8, 8), T, dims=(8,)),
        lambda: cartesian((8, 8), T, dims=(3, 0)),
        lambda: cartesian((8, 8), T, dims=(2, 2)),
        lambda: cartesian((8, 8), T, dims=(-1, 0)),
        lambda: cartesian((8, 8), T, dims=5),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError) as refused:
        wrong()
    assert refused.value.remedy


@pytest.mark.parametrize("unknown", [Link(None, 1e9), Link(1e-6, None)])
def test_a_link_of_unknown_speed_is_named(unknown: Link) -> None:
    machine = T.with_links({"node": unknown})
    for wrong in (
        lambda: place({"a": RING}, machine, axes=AXES),
        lambda: place_graph(np.ones((8, 8)), machine),
        lambda: cartesian((8, 8), machine),
    ):
        with pytest.raises(TopologyError, match="'node'"):
            wrong()
