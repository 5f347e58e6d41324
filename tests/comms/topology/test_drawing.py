"""A topology for people: the tree and the picture."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from closeranks.comms.topology.drawing import layout
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, Unavailable

CARDS = (
    Device("gpu", "GPU 0", 0, near=("mlx5_0",), path="PIX"),
    Device("nic", "mlx5_0", 0, "", 5e10),
)


def machine() -> Topology:
    """Two nodes with cards, one of them smaller."""
    node, numa = [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2]
    topology = Topology.from_groups(("node", "numa", "rank"), [node, numa, range(6)])
    return replace(topology, devices=Devices((CARDS,), (0, -1)))


def test_equal_siblings_are_one_line() -> None:
    lines = str(Topology.regular(site=2, node=4, rank=8)).splitlines()
    assert lines[:3] == [
        "64 ranks (2 sites, 8 nodes)",
        "└─ site 0-1: 4 nodes each",
        "   └─ node 0-7: 8 ranks each",
    ]
    assert lines[3] == "between sites: 50 us, 1.25 GB/s (default)"


def test_different_siblings_stand_apart() -> None:
    assert str(machine()).splitlines()[:8] == [
        "6 ranks (2 nodes, 3 numa domains)",
        "├─ node 0: 2 numa domains",
        "│  └─ numa 0-1: 2 ranks each",
        "└─ node 1: 1 numa",
        "   └─ numa 2: ranks 4-5",
        "between nodes: 5 us, 12.5 GB/s (default)",
        "between numa domains: 1.58 us, 11.2 GB/s (default)",
        "between ranks: 0.5 us, 10 GB/s (default)",
    ]


def test_ranks_dealt_round_robin_show_it() -> None:
    dealt = Topology.from_groups(("node", "rank"), [[0, 1, 2] * 3, range(9)])
    assert "node 0-2: 3 ranks each (the first has 0-6:3)" in str(dealt)


def test_cards_and_exceptions_are_listed() -> None:
    text = str(machine().with_links({}, {("node", 0, 1): Link(None, 1e9, None)}))
    assert "  node 0 and 1: latency ?, 1 GB/s, ? rails (given)" in text
    assert "node 0: GPU 0 numa 0 PIX mlx5_0; mlx5_0 50 GB/s numa 0" in text


def test_a_scattered_machine_stays_readable() -> None:
    node = np.random.default_rng(0).integers(0, 900, 4096)
    text = str(Topology.from_groups(("node", "rank"), [node, range(4096)]))
    assert len(text.splitlines()) < 210
    assert "lines left out" in text


def test_svg_has_every_box_inside_its_parent(tmp_path: Path) -> None:
    target = tmp_path / "machine.svg"
    machine().draw(target)
    root = ElementTree.parse(target).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"6 ranks", "node 0", "numa 2", "GPU 0 · PIX mlx5_0", "mlx5_0 50 GB/s"} <= set(texts)
    assert [text for text in texts if text and text.isdigit()] == [str(rank) for rank in range(6)]

    topology = machine()
    whole = layout(topology, topology.links, topology.devices)
    for box in whole.walk():
        for child in (child for row in box.rows for child in row):
            assert box.x < child.x
            assert child.x + child.width < box.x + box.width
            assert box.y < child.y
            assert child.y + child.height < box.y + box.height


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = Devices(((Device("nic", "<script>&"),),), (0, 0))
    replace(Topology.regular(node=2, rank=1), devices=evil).draw(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "<script>" not in text
    ElementTree.fromstring(text)


def test_a_huge_machine_draws_small(tmp_path: Path) -> None:
    Topology.regular(site=8, switch=16, node=32, rank=8).draw(tmp_path / "huge.svg")
    assert (tmp_path / "huge.svg").stat().st_size < 500_000
    assert "more: node" in (tmp_path / "huge.svg").read_text()


def test_png_where_matplotlib_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    machine().draw(tmp_path / "machine.png")
    assert (tmp_path / "machine.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unavailable, match=r"closeranks\[plot\]"):
        machine().draw(tmp_path / "machine.png")


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"machine\.pdf"):
        machine().draw(tmp_path / "machine.pdf")
