"""Meshes: coordinates, groups, orders; the traffic of a step, message by message."""

from __future__ import annotations

import pickle
import re
from itertools import product
from math import inf, nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError
from closeranks.partitioning import Mesh, Volume
from closeranks.partitioning.mesh.volume import PATTERNS

#: Two sites of two nodes of two ranks, with slow wires.
SLOW = Topology.regular(site=2, node=2, rank=2).with_links(
    {"site": Link(100e-6, 5.96e6), "node": Link(60e-6, 23.4e6), "rank": Link(1e-6, 5e9)}
)
RINGS = {"a": Volume(4e6, "ring"), "b": Volume(1e6, "ring"), "c": Volume(64e3, "line")}


def test_the_last_axis_varies_fastest() -> None:
    mesh = Mesh({"pp": 2, "dp": 3, "tp": 4})
    assert mesh.size == 24
    assert np.array_equal(mesh.ranks, np.arange(24).reshape(2, 3, 4))
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(24)] == list(range(24))
    assert mesh.coordinates(17) == (1, 1, 1)
    assert mesh.group("tp", 17) == [16, 17, 18, 19]
    assert mesh.group("dp", 17) == [13, 17, 21]
    assert mesh.group(("pp", "tp"), 5) == [4, 5, 6, 7, 16, 17, 18, 19]
    assert mesh.group(("tp", "pp"), 5) == [4, 16, 5, 17, 6, 18, 7, 19]


def test_the_order_of_megatron() -> None:
    """The vectors of its docstring: sizes 2, 3, 4 and tp-pp-dp of 2, 2, 2."""
    mesh = Mesh({"tp": 2, "dp": 3, "pp": 4}, order="tp-dp-pp")
    groups = sorted({tuple(mesh.group("dp", rank)) for rank in range(24)})
    assert groups[:2] == [(0, 2, 4), (1, 3, 5)]
    assert groups[-1] == (19, 21, 23)
    other = Mesh({"tp": 2, "dp": 2, "pp": 2}, order="tp-pp-dp")
    assert sorted({tuple(other.group("dp", r)) for r in range(8)}) == [
        (0, 4), (1, 5), (2, 6), (3, 7)
    ]  # fmt: skip


def test_meshes_of_two_orders_do_not_look_alike() -> None:
    assert repr(Mesh({"a": 2, "b": 2}, order="b-a")) == "Mesh(a=2, b=2)"
    other = Mesh({"a": 2, "b": 2}, order="a-b")
    assert repr(other) == "Mesh(a=2, b=2, order=[0, 2, 1, 3])"
    last = [*range(98), 99, 98]
    assert repr(Mesh({"a": 100}, order=last)) != repr(Mesh({"a": 100}, order=[*last[::-1]]))
    assert repr(Mesh({"a": 100}, order=last)) != repr(Mesh({"a": 100}))
    assert repr(Mesh({"a": 100}, order=last)).startswith("Mesh(a=100, order=[0, 1, 2")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_every_rank_is_in_one_group_an_axis(sizes: list[int], random: Any) -> None:
    axes = {f"x{n}": size for n, size in enumerate(sizes)}
    order = list(range(prod(sizes)))
    random.shuffle(order)
    mesh = Mesh(axes, order=order)
    for name, size in axes.items():
        groups = {tuple(mesh.group(name, rank)) for rank in range(mesh.size)}
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        assert {len(group) for group in groups} == {size}
        assert len(groups) * size == mesh.size
        for rank in range(mesh.size):
            at = mesh.coordinates(rank)[list(axes).index(name)]
            assert mesh.group(name, rank)[at] == rank
    assert mesh == pickle.loads(pickle.dumps(mesh))
    assert np.array_equal(Mesh(axes, order=mesh.ranks).ranks, mesh.ranks)


def _sent(mesh: Mesh, axis: str, volume: Volume) -> list[tuple[int, int, float]]:
    """Write down each message of an axis, as its definition says."""
    found = []
    for rank in range(mesh.size):
        group = mesh.group(axis, rank)
        n, at = len(group), group.index(rank)
        if n == 1:
            continue
        if volume.pattern == "ring":
            to = [(at + 1) % n]
        elif volume.pattern == "torus":
            to = [(at + 1) % n, (at - 1) % n]
        elif volume.pattern == "line":
            to = [other for other in (at - 1, at + 1) if 0 <= other < n]
        else:
            to = [other for other in range(n) if other != at]
        each = volume.nbytes / (n - 1) if volume.pattern == "all" else volume.nbytes
        found += [(rank, group[other], each) for other in to]
    return found


def _by_definition(mesh: Mesh, volumes: dict[str, Volume]) -> tuple[float, Any, Any]:
    """Price a step message by message, group by group."""
    machine = mesh.topology
    assert machine is not None
    seconds = 0.0
    levels = machine.levels
    over = np.zeros((len(levels), machine.size))
    out = [np.zeros(machine.count(name)) for name in levels]
    into = [np.zeros(machine.count(name)) for name in levels]
    for axis, volume in volumes.items():
        sent = _sent(mesh, axis, volume)
        slowest, latency = 0.0, np.zeros(machine.size)
        leaves, enters = ([np.zeros_like(one) for one in out] for _ in range(2))
        pairs: dict[Any, float] = {}
        for a, b, nbytes in sent if volume.nbytes else []:
            level = machine.level_index(a, b)
            over[level, a] += nbytes
            link = machine.link(a, b)
            latency[a] += link.latency_s or 0.0
            for i in range(len(levels)):
                g, h = machine.groups[i, a], machine.groups[i, b]
                if g != h:
                    leaves[i][g] += nbytes
                    enters[i][h] += nbytes
            g, h = int(machine.groups[level, a]), int(machine.groups[level, b])
            if (levels[level], min(g, h), max(g, h)) in machine.exceptions:
                key = (levels[level], g, h)
                pairs[key] = pairs.get(key, 0.0) + nbytes
        for i, name in enumerate(levels):
            link = machine.links[name]
            rate = (link.bytes_per_s or 0.0) * (link.rails or 1)
            slowest = max(slowest, leaves[i].max() / rate, enters[i].max() / rate)
            out[i] += leaves[i]
            into[i] += enters[i]
        for (name, g, h), nbytes in pairs.items():
            link = machine.exceptions[name, min(g, h), max(g, h)]
            slowest = max(slowest, nbytes / ((link.bytes_per_s or 0.0) * (link.rails or 1)))
        seconds += slowest + latency.max()
    busiest = dict(zip(levels, over.max(axis=1).tolist(), strict=True))
    groups = {name: max(float(out[i].max()), float(into[i].max())) for i, name in enumerate(levels)}
    return seconds, busiest, groups


_RAILS = (1, 2, None)


def _machines(random: Any) -> Topology:
    """Make a machine of up to 12 ranks, irregular as often as not."""
    size = random.randint(2, 12)
    node = [random.randint(0, 3) for _ in range(size)]
    site = [number // 2 for number in node]
    links = {
        name: Link(random.choice([0.0, 1e-6]), random.choice([1e6, 3e7]), random.choice(_RAILS))
        for name in ("site", "node", "rank")
    }
    plain = Topology.from_groups(("site", "node", "rank"), [site, node, range(size)], links)
    exceptions = {}
    for name in ("site", "node", "rank"):
        count = plain.count(name)
        if count > 1 and random.random() < 0.5:
            pair = sorted(random.sample(range(count), 2))
            exceptions[name, pair[0], pair[1]] = Link(5e-4, random.choice([2e5, 1e9]), 2)
    return plain.with_links({}, exceptions)


@given(st.randoms(use_true_random=False))
def test_a_step_costs_what_its_messages_do(random: Any) -> None:
    machine = _machines(random)
    divisors = [d for d in range(1, machine.size + 1) if machine.size % d == 0]
    first = random.choice(divisors)
    axes = {"a": first, "b": machine.size // first}
    order = list(range(machine.size))
    random.shuffle(order)
    mesh = Mesh(axes, machine, order)
    volumes = {
        name: Volume(random.choice([0, 8, 1000, 1e6 + 0.5]), random.choice(list(PATTERNS)))
        for name in random.sample(list(axes), random.randint(0, 2))
    }
    seconds, busiest, groups = _by_definition(mesh, volumes)
    cost = mesh.cost(volumes)
    assert cost.seconds == pytest.approx(seconds, rel=1e-12, abs=1e-18)
    assert cost.bytes_per_level == pytest.approx(busiest, rel=1e-12)
    assert cost.group_bytes_per_level == pytest.approx(groups, rel=1e-12)
    assert mesh.traffic(volumes) == cost.bytes_per_level


def test_predicted_times_of_a_slow_machine() -> None:
    orders = ("04261537", "07162435", "02461357", "03247156", "01234567")
    costs = [
        Mesh({"a": 2, "b": 2, "c": 2}, SLOW, [int(rank) for rank in order]).cost(RINGS).seconds
        for order in orders
    ]
    assert [round(1e3 * s) for s in costs] == [129, 385, 678, 1700, 2770]


def test_a_step_of_many_ranks_is_priced_fast() -> None:
    machine = Topology.regular(site=4, node=512, rank=8)
    mesh = Mesh({"a": 8, "b": 16, "c": 128}, machine)
    cost = mesh.cost({"c": Volume(127, "all")})
    assert cost.group_bytes_per_level["node"] == 8 * 120
    assert cost.bytes_per_level == {"site": 0, "node": 120, "rank": 7}


#: Without types: they refuse what the calls are to refuse.
MESH: Any = Mesh
VOLUME: Any = Volume


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MESH({}), "axes"),
        (lambda: MESH({"a": 0}), "'a'"),
        (lambda: MESH({"a": -2}), "-2"),
        (lambda: MESH({"a": 1.5}), "1.5"),
        (lambda: MESH({1: 2}), "called 1"),
        (lambda: MESH({"a b": 2}), "'a b'"),
        (lambda: MESH([2, 3]), "[2, 3]"),
        (lambda: MESH({"a": 3}, SLOW), "8 ranks"),
        (lambda: MESH({"a": 2, "b": 2}, order="a-c"), "'a-c'"),
        (lambda: MESH({"a": 2, "b": 2}, order="a"), "'a'"),
        (lambda: MESH({"a": 2, "b": 2}, order=[0, 1, 2, 2]), "rank 2 twice"),
        (lambda: MESH({"a": 2, "b": 2}, order=[0, 1, 2, 4]), "rank 4"),
        (lambda: MESH({"a": 2, "b": 2}, order=[0, 1, 2, -1]), "rank -1"),
        (lambda: MESH({"a": 2, "b": 2}, order=[[0, 1, 2, 3]]), "(1, 4)"),
        (lambda: MESH({"a": 2, "b": 2}, order=[0.0, 1.0, 2.0, 3.0]), "float64"),
        (lambda: MESH({"a": 2}).group("b", 0), "'b'"),
        (lambda: MESH({"a": 2}).group(("a", "a"), 0), "twice"),
        (lambda: MESH({"a": 2}).group("a", 2), "2"),
        (lambda: MESH({"a": 2}).group(0, 0), "axis is 0"),
        (lambda: MESH({"a": 2}).cart(None, 1.5), "1.5"),
        (lambda: MESH({"a": 2}).coordinates(-1), "-1"),
        (lambda: MESH({"a": 2}).rank((2,)), "2"),
        (lambda: MESH({"a": 2}).rank((0, 0)), "(0, 0)"),
        (lambda: MESH({"a": 2}).cost({}), "no topology"),
        (lambda: MESH({"a": 8}, SLOW).cost({"b": Volume(1, "ring")}), "'b'"),
        (lambda: MESH({"a": 8}, SLOW).traffic({"a": 7}), "7"),
        (lambda: VOLUME(-1, "ring"), "-1"),
        (lambda: VOLUME(nan, "ring"), "nan"),
        (lambda: VOLUME(inf, "ring"), "inf"),
        (lambda: VOLUME(2**1100, "ring"), "finite"),
        (lambda: VOLUME("4M", "ring"), "'4M'"),
        (lambda: VOLUME(1, "circle"), "'circle'"),
    ],
)
def test_bad_input_is_named(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        make()


@pytest.mark.parametrize("link", [Link(None, 1e9), Link(1e-6, None)])
def test_a_link_of_unknown_speed_is_named(link: Link) -> None:
    mesh = Mesh({"a": 8}, SLOW.with_links({"node": link}))
    with pytest.raises(TopologyError, match="'node'"):
        mesh.cost({"a": Volume(1, "ring")})
    assert mesh.traffic({"a": Volume(1, "ring")})["site"] == 1
    with pytest.raises(TopologyError, match="'site' between 0 and 1"):
        Mesh({"a": 8}, SLOW.with_links({}, {("site", 0, 1): link})).cost({})


def test_a_mesh_is_drawn(tmp_path: Path) -> None:
    mesh = Mesh({"a": 2, "b": 4}, SLOW, [0, 4, 2, 6, 1, 5, 3, 7])
    mesh.draw(tmp_path / "mesh.svg", axis="b")
    text = (tmp_path / "mesh.svg").read_text()
    for rank, (a, b) in zip(mesh.ranks.reshape(-1), product(range(2), range(4)), strict=True):
        assert f">{rank}: {a},{b}<" in text
    fills = {
        re.search(rf'fill="(#\w+)"[^>]*/>\n<text[^>]*>{rank}: ', text)[1]  # type: ignore[index]
        for rank in mesh.group("a", 0)
    }
    assert len(fills) == 1
    with pytest.raises(UsageError, match="'c'"):
        mesh.draw(tmp_path / "mesh.svg", axis="c")
