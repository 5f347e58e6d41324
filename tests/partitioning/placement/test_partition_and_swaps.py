"""The parts of the search on large machines, each by itself."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Mesh, Volume
from closeranks.partitioning.mesh.traffic import Messages, messages
from closeranks.partitioning.placement.graph_partition import GraphCut, refined
from closeranks.partitioning.placement.mesh_recognition import recognised
from closeranks.partitioning.placement.ranked import Shortlist
from closeranks.partitioning.placement.swaps import SwapSearch, exchange_groups
from closeranks.partitioning.placement.workload import MeshWorkload
from tests.partitioning.placement import brute_force


def _blocks(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Give weights that are larger inside of some blocks, and the block of each position."""
    draw = np.random.default_rng(7)
    labels = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    weights = np.where(labels[:, None] == labels[None], 40, 0) + draw.integers(0, 30, (40, 40))
    weights = np.triu(weights, 1)
    return weights + weights.T, labels


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one[None]) == (other[:, None] == other[None])).all())


@pytest.mark.parametrize("sizes", [(20, 20), (10, 10, 10, 10)])
def test_exchanges_find_the_blocks(sizes: tuple[int, ...]) -> None:
    weights, labels = _blocks(sizes)
    mixed = np.random.default_rng(1).permutation(labels)
    found = refined(weights, mixed, len(sizes))
    assert np.bincount(found).tolist() == [*sizes]
    assert _same(found, labels)


@pytest.mark.parametrize("sizes", [(20, 20), (10, 10, 10, 10)])
def test_every_way_to_cut_finds_the_blocks(sizes: tuple[int, ...]) -> None:
    weights, labels = _blocks(sizes)
    draw = np.random.default_rng(2)
    for cut in (
        GraphCut(),
        GraphCut(draw),
        GraphCut(stepwise=True),
        GraphCut(draw, stepwise=True, coarse=True),
    ):
        assert _same(cut(weights, sizes), labels)


@pytest.mark.parametrize("number", range(10))
def test_exchanges_keep_count_of_the_cost(number: int) -> None:
    draw = np.random.default_rng([9, number])
    size = 24
    node = draw.integers(0, 4, size)
    table = [node // 2, node, range(size)]
    machine = Topology.from_groups(("site", "node", "rank"), table)
    links = {name: brute_force.link(draw) for name in machine.levels}
    machine = machine.with_links(links, brute_force.exceptions(machine, draw, number % 2))
    axes = {"a": 4, "b": 6}
    volumes = {name: Volume(1000, str(draw.choice(brute_force.PATTERNS))) for name in axes}
    start = draw.permutation(size)
    search = SwapSearch(MeshWorkload(axes, volumes, machine), start)
    before = Mesh(axes, machine, start).cost(volumes).seconds
    assert search.loads.key()[0] == pytest.approx(before, rel=1e-9)
    after = Mesh(axes, machine, search.run(200)).cost(volumes).seconds
    assert search.loads.key()[0] == pytest.approx(after, rel=1e-9)
    assert after <= before * (1 + 1e-9)
    improved = [SwapSearch(MeshWorkload(axes, volumes, machine), start).run(200) for _ in "12"]
    assert improved[0].tolist() == improved[1].tolist()


def test_a_slow_link_is_left_to_groups_that_use_it_little() -> None:
    machine = Topology.regular(node=4, rank=8)
    slow = machine.links["node"].__class__(1e-3, 1e5)
    machine = machine.with_links({}, {("node", 0, 1): slow})
    workload = MeshWorkload({"a": 4, "b": 8}, {"a": Volume(1000, "line")}, machine)
    shortlist = Shortlist(workload)
    exchange_groups(workload, shortlist)
    best = shortlist.placements(1, proved=False)[0]
    assert best.cost.seconds < best.default.seconds / 10


@pytest.mark.parametrize("patterns", [("ring", "line"), ("torus", "all"), ("line", "ring")])
def test_a_mesh_is_recognised(patterns: tuple[str, str]) -> None:
    draw = np.random.default_rng(4)
    shape = (5, 6)
    sent = [
        messages(shape, axis, Volume(1000 * (axis + 1), one)) for axis, one in enumerate(patterns)
    ]
    sources, targets, nbytes = (np.concatenate(one) for one in zip(*sent, strict=True))
    process = draw.permutation(30)
    found = recognised(Messages(process[sources], process[targets], nbytes), 30)
    assert found is not None
    volumes = sorted(found.sending.items(), key=lambda one: found.shape[one[0]])
    assert sorted(found.shape) == [5, 6]
    assert [one.pattern for _, one in volumes] == [*patterns]
    for axis, volume in found.sending.items():
        again = messages(found.shape, axis, volume)
        at = np.argsort(found.positions)
        pairs = {*zip(process[sources].tolist(), process[targets].tolist(), strict=True)}
        assert {*zip(at[again.sources].tolist(), at[again.targets].tolist(), strict=True)} <= pairs
    varied = Messages(sources, targets, nbytes * draw.uniform(0.1, 1, nbytes.size))
    assert recognised(varied, 30) is None
