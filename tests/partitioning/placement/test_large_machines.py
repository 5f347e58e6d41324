"""Machines of 64 to 1024 ranks: shuffled good orders are found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Mesh, Volume, place, place_graph
from tests.partitioning.placement import brute_force
from tests.shares import SEED

DAY = 0 if SEED == "all" else int(SEED)
ARITIES = ((2, 4, 8), (4, 4, 4), (1, 8, 8), (3, 6, 4), (2, 4, 16), (2, 8, 16), (4, 8, 16),
           (4, 16, 16))  # fmt: skip
CASES = range(40)
Case = tuple[Topology, dict[str, int], dict[str, Volume], Any]


def _case(number: int) -> tuple[Case, np.random.Generator]:
    """Make up a machine, a step on a mesh, and the planted order, shuffled."""
    draw = np.random.default_rng([DAY, number])
    arities = ARITIES[number % len(ARITIES)]
    rows = np.ones((3, 3), dtype=np.int64)  # tier, axis
    for tier, arity in enumerate(arities):
        rest, prime = arity, 2
        while rest > 1:
            while rest % prime == 0:
                rows[tier, draw.integers(3)] *= prime
                rest //= prime
            prime += 1
    shape = rows.prod(axis=0).tolist()
    machine = Topology.regular(site=arities[0], node=arities[1], rank=arities[2])
    # A rank's number in the machine by position: axis by axis its digits, tier by tier.
    tiled = np.arange(machine.size).reshape(rows.reshape(-1))
    tiled = tiled.transpose([tier * 3 + axis for axis in range(3) for tier in range(3)])
    labels = draw.permutation(machine.size)  # what the ranks are called in truth
    groups = machine.groups[:, np.argsort(labels)]
    slow = [float(10 ** draw.uniform(6 + k, 7 + k)) for k in range(3)]
    links = {
        name: Link(10.0 ** -(4 + k), rate, 1)
        for k, (name, rate) in enumerate(zip(machine.levels, slow, strict=True))
    }
    shuffled = Topology.from_groups(machine.levels, groups, links)
    axes = dict(zip("abc", shape, strict=True))
    volumes = {
        name: Volume(1000 * int(draw.integers(1, 1000)), str(draw.choice(brute_force.PATTERNS)))
        for name in axes
    }
    return (shuffled, axes, volumes, labels[tiled.reshape(-1)]), draw


def _uneven(machine: Topology, draw: np.random.Generator) -> Topology:
    """Move some ranks to other nodes, and give one pair of nodes a link of its own."""
    node = machine.groups[-2].copy()
    some = draw.choice(machine.size, machine.size // 16, replace=False)
    node[some] = draw.integers(0, machine.count("node"), some.size)
    first = np.unique(machine.groups[-2], return_index=True)[1]
    site = machine.groups[0][first][node]
    table = [site, node, range(machine.size)]
    made = Topology.from_groups(machine.levels, table, machine.links)
    return made.with_links({}, {("node", 0, 1): brute_force.link(draw)})


def _reference(price: Callable[[Any], float], size: int, draw: np.random.Generator) -> float:
    """Give the price of the best of 200 random orders, each improved by a few exchanges."""
    orders = [draw.permutation(size) for _ in range(200)]
    prices = [price(order) for order in orders]
    best = min(prices)
    for k in np.argsort(prices)[:5]:
        order, least = orders[k], prices[k]
        for _ in range(40):
            p, q = draw.choice(size, 2, replace=False)
            order[[p, q]] = order[[q, p]]
            now = price(order)
            least = min(least, now)
            if now > least:
                order[[p, q]] = order[[q, p]]
        best = min(best, least)
    return best


@pytest.mark.share(13)
@pytest.mark.parametrize("number", CASES)
def test_place_finds_a_shuffled_order_again(number: int) -> None:
    (machine, axes, volumes, planted), draw = _case(number)
    found = place(volumes, machine, axes=axes)[0]
    good = Mesh(axes, machine, planted).cost(volumes).seconds
    assert found.cost.seconds <= 1.05 * good
    assert found.cost.seconds <= found.default.seconds

    def price(order: npt.NDArray[Any]) -> float:
        return Mesh(axes, machine, order).cost(volumes).seconds

    assert found.cost.seconds <= _reference(price, machine.size, draw) * (1 + 1e-9)


@pytest.mark.share(13)
@pytest.mark.parametrize("number", CASES)
def test_place_copes_with_unequal_groups(number: int) -> None:
    (machine, axes, volumes, _), draw = _case(number)
    uneven = _uneven(machine, draw)
    found = place(volumes, uneven, axes=axes)[0]
    assert found.cost.seconds <= found.default.seconds

    def price(order: npt.NDArray[Any]) -> float:
        return Mesh(axes, uneven, order).cost(volumes).seconds

    assert found.cost.seconds <= _reference(price, uneven.size, draw) * (1 + 1e-9)


@pytest.mark.share(13)
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("number", CASES)
def test_place_graph_finds_a_shuffled_order_again(number: int, noise: float) -> None:
    """With noise the matrix is that of no mesh: bytes differ from message to message."""
    (machine, axes, volumes, planted), draw = _case(number)
    size, shape = machine.size, tuple(axes.values())
    axis = [brute_force.along(shape, k, one)[0] for k, one in enumerate(volumes.values())]
    weights = sum(axis) * draw.uniform(1 - noise, 1 + noise, (size, size))
    process = draw.permutation(size)  # the position of each process
    shuffled = weights[np.ix_(process, process)]
    found = place_graph(shuffled, machine)
    good = _priced(shuffled, machine, planted[process])
    assert found.cost.seconds == pytest.approx(_priced(shuffled, machine, found.mesh.ranks))
    assert found.cost.seconds <= 1.05 * good
    assert found.cost.seconds <= found.default.seconds


def _priced(weights: npt.NDArray[Any], machine: Topology, order: npt.NDArray[Any]) -> float:
    """Price a matrix in one order, rank by rank."""
    sent = np.zeros_like(weights)
    sent[np.ix_(order, order)] = weights
    waits, slowest = np.zeros_like(weights), 0.0
    inside = np.ones(weights.shape, dtype=bool)  # the pairs that no outer level separates
    for name, row in zip(machine.levels, machine.groups, strict=True):
        apart = row[:, None] != row[None]
        waits[inside & apart & (sent > 0)] = machine.links[name].latency_s or 0.0
        inside &= ~apart
        out = np.bincount(row, (sent * apart).sum(axis=1))
        into = np.bincount(row, (sent * apart).sum(axis=0))
        rate = machine.links[name].bytes_per_s or 0.0
        slowest = max(slowest, float(out.max()) / rate, float(into.max()) / rate)
    return slowest + float(waits.sum(axis=1).max())
