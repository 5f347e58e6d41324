"""Machines of up to eight ranks: what is found equals a search through all orders."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Mesh, Volume, place, place_graph
from tests.partitioning.placement import brute_force
from tests.shares import SEED

DAY = 0 if SEED == "all" else int(SEED)
MACHINES = [*brute_force.regular_machines(), *brute_force.irregular_machines()]
#: Cases of a machine: more than 300 in all, each for `place` and for `place_graph`.
CASES = 6


def _drawn(number: int, case: int) -> tuple[Topology, np.random.Generator]:
    """Give a machine with links of its own, and where more comes from."""
    draw = np.random.default_rng([DAY, number, case])
    machine = MACHINES[number]
    links = {name: brute_force.link(draw) for name in machine.levels}
    exceptions = {pair: brute_force.link(draw) for pair in machine.exceptions}
    return machine.with_links(links, exceptions), draw


def test_there_are_enough_cases() -> None:
    assert len(MACHINES) * CASES >= 300
    assert sum(bool(one.exceptions) for one in MACHINES) >= 8


@pytest.mark.parametrize("number", range(len(MACHINES)))
def test_place_finds_the_best_of_all_orders(number: int) -> None:
    for case in range(CASES):
        machine, draw = _drawn(number, case)
        shape = brute_force.shape(machine.size, 1 + case % 3, draw)
        axes = dict(zip("abc", shape, strict=False))
        volumes = {
            name: Volume(int(draw.integers(0, 10**6)), str(draw.choice(brute_force.PATTERNS)))
            for name in axes
        }
        sent = [brute_force.along(shape, k, one) for k, one in enumerate(volumes.values())]
        prices = brute_force.seconds(sent, machine, brute_force.orders(machine.size))
        wanted = 1 + 3 * (case % 2)
        found = place(volumes, machine, axes=axes, top=wanted)
        best = found[0]
        assert best.cost.seconds == pytest.approx(prices.min(), rel=1e-9, abs=0)
        assert best.default.seconds == pytest.approx(prices[0], rel=1e-9, abs=0)
        assert best.exact
        assert 1 <= len(found) <= wanted
        times = [one.cost.seconds for one in found]
        assert times == pytest.approx(sorted(times), rel=1e-9, abs=0)
        for one in found:
            order = one.mesh.ranks.reshape(1, -1)
            own = brute_force.seconds(sent, machine, order)[0]
            assert one.cost == Mesh(axes, machine, order[0]).cost(volumes)
            assert one.cost.seconds == pytest.approx(own, rel=1e-9, abs=0)
            assert one.cost.seconds <= one.default.seconds * (1 + 1e-10)
            assert one.exact == (own <= prices.min() * (1 + 1e-10))
        if prices[0] <= prices.min() * (1 + 1e-10):
            assert best.mesh.ranks.reshape(-1).tolist() == [*range(machine.size)]


@pytest.mark.parametrize("number", range(len(MACHINES)))
def test_place_graph_finds_the_best_of_all_orders(number: int) -> None:
    for case in range(CASES):
        machine, draw = _drawn(number, case)
        size = machine.size
        weights = np.floor(10 ** draw.uniform(0, 6, (size, size)))
        weights *= draw.random((size, size)) < draw.uniform(0.1, 1.0)
        off = weights * (1 - np.eye(size))
        prices = brute_force.seconds([(off, off > 0)], machine, brute_force.orders(size))
        best = place_graph(weights, machine)
        assert best.cost.seconds == pytest.approx(prices.min(), rel=1e-9, abs=0)
        assert best.default.seconds == pytest.approx(prices[0], rel=1e-9, abs=0)
        own = brute_force.seconds([(off, off > 0)], machine, best.mesh.ranks.reshape(1, -1))
        assert best.cost.seconds == pytest.approx(own[0], rel=1e-9, abs=0)
        assert best.exact
        assert dict(best.mesh.axes) == {"rank": size}


@pytest.mark.parametrize("pattern", brute_force.PATTERNS)
def test_of_orders_of_equal_price_the_first_is_taken(pattern: str) -> None:
    machine = Topology.regular(node=2, rank=4)
    volumes = {"a": Volume(1000, "ring"), "b": Volume(8000, pattern)}
    sent = [brute_force.along((4, 2), k, one) for k, one in enumerate(volumes.values())]
    every = brute_force.orders(8)
    shuffled = Topology.from_groups(("node", "rank"), [np.arange(8) % 2, np.arange(8)])
    shuffled = shuffled.with_links(machine.links)
    prices = brute_force.seconds(sent, shuffled, every)
    best = place(volumes, shuffled, axes={"a": 4, "b": 2})[0]
    assert prices[0] > prices.min() * 1.01
    first = every[np.flatnonzero(prices <= prices.min() * (1 + 1e-10))[0]]
    assert best.mesh.ranks.reshape(-1).tolist() == first.tolist()
