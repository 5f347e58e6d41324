"""The table of groups: queries, checks, restriction, links."""

from __future__ import annotations

import pickle
import time
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.comms.topology.link import Link, default_links
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError
from tests.pace import least_shares


def irregular() -> Topology:
    """Two sites; nodes of 3, 2 and 2 ranks dealt round-robin."""
    node = [0, 1, 2, 0, 1, 2, 0]
    site = [0, 0, 1, 0, 0, 1, 0]
    return Topology.from_groups(("site", "node", "rank"), [site, node, range(7)])


def test_regular_counts_children_per_parent() -> None:
    topology = Topology.regular(site=2, node=4, rank=8)
    assert topology.size == 64
    assert topology.levels == ("site", "node", "rank")
    assert [topology.count(name) for name in topology.levels] == [2, 8, 64]
    assert topology.groups.dtype == np.int32
    assert topology.groups.shape == (3, 64)
    assert topology.groups[:, 37].tolist() == [1, 4, 37]


def test_queries_of_an_irregular_map() -> None:
    topology = irregular()
    assert topology.members("node", 0).tolist() == [0, 3, 6]
    assert topology.members("site", 1).tolist() == [2, 5]
    assert topology.sizes("node").tolist() == [3, 2, 2]
    assert [topology.level_index(0, b) for b in range(7)] == [3, 1, 0, 2, 1, 0, 2]
    assert [topology.distance(0, b) for b in range(7)] == [0, 2, 3, 1, 2, 3, 1]


@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_level_indices_agree_with_level_index(size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    node = draw.integers(0, 4, size)
    topology = Topology.from_groups(("site", "node", "rank"), [node // 2, node, range(size)])
    table = topology.level_indices(np.arange(size)[:, None], np.arange(size)[None])
    one_by_one = [[topology.level_index(a, b) for b in range(size)] for a in range(size)]
    assert table.tolist() == one_by_one
    members = [topology.members("node", group) for group in range(topology.count("node"))]
    assert sorted(np.concatenate(members)) == list(range(size))


@pytest.mark.parametrize(
    ("levels", "groups", "says"),
    [
        (("node",), [[0]], "innermost level is 'node'"),
        (("rank", "rank"), [[0], [0]], "levels are"),
        (("no de", "rank"), [[0], [0]], "no level name"),
        (("node", "rank"), [[0, 1]], r"shape \(1, 2\)"),
        (("node", "rank"), [[0.5, 1], [0, 1]], "dtype float64"),
        (("node", "rank"), [[], []], "dtype float64"),
        (("node", "rank"), [[0, 1], [0, 0]], "rank group 0 lies in node groups 0 and 1"),
        (("node", "rank"), [[0, 0], [0, 0]], "two ranks share"),
        (("site", "node", "rank"), [[0, 0, 1], [0, 1, 1], [0, 1, 2]], "node group 1 lies in"),
    ],
)
def test_what_is_no_hierarchy_is_refused(
    levels: tuple[str, ...], groups: object, says: str
) -> None:
    with pytest.raises(TopologyError, match=says):
        Topology.from_groups(levels, groups)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [[1, 0], [0, 2], [-1, 0], [0, 2**40]])
def test_numbers_out_of_order_are_refused(row: list[int]) -> None:
    with pytest.raises(TopologyError, match=r"order of their first rank|group numbers span"):
        Topology(("node", "rank"), np.array([row, [0, 1]]))


@pytest.mark.parametrize("children", [{"rank": 0}, {"node": 1 << 15, "rank": 1 << 15}, {"node": 2}])
def test_impossible_machines_are_refused(children: dict[str, int]) -> None:
    with pytest.raises(TopologyError):
        Topology.regular(**children)


def test_it_cannot_be_changed_and_equals_by_value() -> None:
    one, two = irregular(), irregular()
    assert one == two
    assert hash(one) == hash(two)
    assert one == pickle.loads(pickle.dumps(one))
    assert one != Topology.regular(node=7, rank=1)
    assert one != one.with_links({"node": Link(1e-6, 1e9)})
    with pytest.raises(ValueError, match="read-only"):
        one.groups[0, 0] = 1
    with pytest.raises(FrozenInstanceError):
        one.levels = ("rank",)  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.links["node"] = Link(1, 1)  # type: ignore[index]


def test_restrict_renumbers_in_order_of_first_rank() -> None:
    small = irregular().restrict([5, 6, 3, 1])
    assert small.groups.tolist() == [[0, 1, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3]]
    assert small.levels == ("site", "node", "rank")


def test_restrict_keeps_exceptions_and_devices() -> None:
    bad = Link(1e-3, 1e6)
    tables = ((Device("nic", "eth0"),), (Device("nic", "ib0"),))
    devices = Devices(tables, (0, 1, -1), (0, 1, -1, 0, 1, -1, 0))
    topology = replace(irregular(), devices=devices).with_links({}, {("node", 0, 1): bad})
    assert topology.link(0, 1) == bad
    assert topology.link(4, 6) == bad
    small = topology.restrict([4, 5, 6])
    assert small.exceptions == {("node", 0, 2): bad}
    assert small.link(0, 2) == small.link(2, 0) == bad
    assert small.devices.on(0) == tables[1]
    assert small.devices.on(1) == ()
    assert small.devices.numa_of_rank == (1, -1, 0)
    assert topology.restrict([2, 5]).exceptions == {}
    assert topology.restrict([2, 5]).devices.tables == ()


@pytest.mark.parametrize("ranks", [[], [0, 0], [7], [-1]])
def test_restrict_refuses_what_is_no_choice_of_ranks(ranks: list[int]) -> None:
    with pytest.raises(TopologyError):
        irregular().restrict(ranks)


def test_links_have_defaults_by_name() -> None:
    links = Topology.regular(site=2, switch=2, node=2, numa=2, rank=2).links
    assert (links["rank"].latency_s, links["rank"].bytes_per_s) == (0.5e-6, 10e9)
    assert (links["node"].latency_s, links["node"].bytes_per_s) == (5e-6, 12.5e9)
    assert (links["site"].latency_s, links["site"].bytes_per_s) == (50e-6, 1.25e9)
    assert links["switch"].latency_s == pytest.approx((50e-6 * 5e-6) ** 0.5)
    assert links["numa"].bytes_per_s == pytest.approx((12.5e9 * 10e9) ** 0.5)
    assert (
        default_links(("switch", "node", "rank"))["switch"].latency_s == links["switch"].latency_s
    )
    assert default_links(("a", "rank"))["a"].latency_s == pytest.approx((5e-6 * 0.5e-6) ** 0.5)


def test_link_is_that_of_the_outermost_level_that_differs() -> None:
    topology = irregular()
    assert topology.link(0, 3) == topology.links["rank"]
    assert topology.link(0, 1) == topology.links["node"]
    assert topology.link(0, 2) == topology.links["site"]
    with pytest.raises(TopologyError, match="itself"):
        topology.link(2, 2)
    wrong: Any
    for wrong in (7, -1, 1.5, float("nan"), "1", None, [1]):
        for ask in (topology.link, topology.distance, topology.level_index):
            with pytest.raises(TopologyError, match=r"rank is .*give .* 0 <= rank < 7"):
                ask(0, wrong)
            with pytest.raises(TopologyError, match="rank is"):
                ask(wrong, 0)
        with pytest.raises(TopologyError, match=r"out of range|ranks are|in a row"):
            topology.restrict([wrong])
    for none in (5, None, 1.5, "01"):
        with pytest.raises(TopologyError, match=r"give (ranks in|them in a row)"):
            topology.restrict(none)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="in a row"):
        topology.restrict([[0], [1]])  # type: ignore[list-item]


WRONG = (5, -1, float("nan"), "x", [1], (1, 2), None, object(), {"a": 1}, b"a", True)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_part_of_a_topology_is_refused(wrong: Any) -> None:
    good = irregular()
    for ask in (
        lambda: Topology(wrong, good.groups),
        lambda: Topology(good.levels, wrong),
        lambda: Topology(good.levels, good.groups, wrong),
        lambda: Topology(good.levels, good.groups, {}, wrong),
        lambda: Topology(good.levels, good.groups, {}, {}, wrong),
        lambda: Topology.from_groups(wrong, good.groups),
        lambda: Topology.from_groups(good.levels, wrong),
        lambda: Topology.from_json(wrong),
        lambda: good.with_links(wrong),
        lambda: good.members("node", wrong) if wrong is not True else good.count(wrong),  # type: ignore[arg-type]
        lambda: good.draw(wrong),
        lambda: good.position(wrong),
    ):  # fmt: skip
        with pytest.raises(TopologyError) as found:
            ask()
        assert found.value.remedy


@pytest.mark.parametrize(
    "numbers",
    [
        (-1.0, 1.0, 1),
        (float("nan"), 1.0, 1),
        (1.0, 0.0, 1),
        (1.0, float("inf"), 1),
        (1, 10**400, 1),
        (1, 1, 0),
    ],
)
def test_impossible_links_are_refused(numbers: tuple[float, float, int]) -> None:
    with pytest.raises(TopologyError):
        Link(*numbers)


@pytest.mark.parametrize("pair", [("node", 1, 0), ("node", 0, 3), ("node", 0, 0), ("hall", 0, 1)])
def test_exceptions_name_two_groups(pair: tuple[str, int, int]) -> None:
    with pytest.raises(TopologyError):
        irregular().with_links({}, {pair: Link(1e-6, 1e9)})


def test_a_large_machine_is_made_and_asked_fast() -> None:
    def shares() -> tuple[float, float]:
        start = time.perf_counter()
        topology = Topology.regular(node=2048, rank=8)
        made_s = time.perf_counter() - start
        for rank in range(0, 16384, 16):
            topology.level_index(0, rank)
            topology.members("node", rank // 8)
        asked_s = time.perf_counter() - start - made_s
        return made_s / 0.05, asked_s / 1024 / 200e-6

    assert max(least_shares(shares)) < 1
    topology = Topology.regular(node=2048, rank=8)
    assert topology.level_indices(0, np.arange(16384)).sum() == 7 * 1 + 1 * 2
    assert len(str(topology)) < 300


def test_devices_near_a_rank() -> None:
    table = (Device("nic", "a", numa=0), Device("nic", "b", numa=1), Device("gpu", "g", numa=1))
    devices = Devices((table,), (0,), (0, 1, -1))
    assert [d.name for d in devices.near(1, 0, "nic")] == ["b"]
    assert [d.name for d in devices.near(2, 0, "nic")] == ["a", "b"]
    assert [d.name for d in devices.near(0, 0, "gpu")] == ["g"]
    with pytest.raises(TopologyError, match="entries"):
        replace(Topology.regular(node=2, rank=2), devices=devices)
