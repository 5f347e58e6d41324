"""The JSON form: both ways, readable, safe against strangers."""

from __future__ import annotations

import json
import re
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology import Topology
from closeranks.comms.topology.topology_json import ranges, read_runs, write_runs
from closeranks.errors import TopologyError

numbers = st.none() | st.floats(1e-9, 1e12, allow_nan=False)
links = st.builds(Link, numbers, numbers, st.none() | st.integers(1, 64), st.text(max_size=20))
texts = st.text(max_size=12)
cards = st.builds(
    Device,
    kind=st.sampled_from(["gpu", "nic"]),
    name=texts,
    numa=st.integers(-1, 7),
    pci=texts,
    bytes_per_s=st.none() | st.floats(1, 1e12),
    near=st.lists(texts, max_size=3).map(tuple),
    path=st.sampled_from(["", "PIX", "SYS"]),
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any small topology: nested by construction, in any order of ranks."""
    size = draw(st.integers(1, 24))
    node = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    levels: list[str] = ["rank"]
    rows: list[list[int]] = [list(range(size))]
    if draw(st.booleans()):
        levels, rows = ["node", *levels], [node, *rows]
        if draw(st.booleans()):
            levels, rows = ["site", *levels], [[n // 2 for n in node], *rows]
    topology = Topology.from_groups(levels, rows)
    chosen = draw(st.dictionaries(st.sampled_from(levels), links))
    exceptions = {}
    name = draw(st.sampled_from(levels))
    if topology.count(name) > 1:
        exceptions[name, 0, draw(st.integers(1, topology.count(name) - 1))] = draw(links)
    devices = Devices()
    if "node" in levels and draw(st.booleans()):
        table = tuple(draw(st.lists(cards, max_size=3)))
        numa = draw(st.lists(st.integers(-1, 3), min_size=size, max_size=size))
        devices = Devices((table,), (0,) * topology.count("node"), tuple(numa))
    return replace(topology.with_links(chosen, exceptions), devices=devices)


@given(topologies())
def test_round_trip(topology: Topology) -> None:
    text = topology.to_json()
    assert Topology.from_json(text) == topology
    assert Topology.from_json(text).to_json() == text


def test_large_maps_are_compact_when_regular() -> None:
    text = Topology.regular(node=2048, rank=8).to_json()
    assert len(text) < 1000
    assert Topology.from_json(text) == Topology.regular(node=2048, rank=8)
    dealt = Topology.from_groups(("node", "rank"), [np.arange(16384) % 2048, range(16384)])
    assert len(dealt.to_json()) < 1000


@given(st.lists(st.integers(-1, 9), max_size=40))
def test_runs_round_trip(values: list[int]) -> None:
    assert read_runs(write_runs(values), len(values), "x").tolist() == values


def test_runs_are_readable() -> None:
    assert write_runs([0, 0, 1, 1, 2, 2]) == "0..2*2"
    assert write_runs([0, 1, 2, 0, 1, 2, 7, -1, -1]) == "0..2 0..2 7 -1*2"
    assert ranges([0, 1, 2, 5, 8, 16, 24]) == "0-2, 5, 8-24:8"


@pytest.mark.parametrize("text", ["0..9999999*9999999", "5..1", "0*0", "a", "1.5", "0*3 0", "0 0"])
def test_runs_never_grow_beyond_their_size(text: str) -> None:
    with pytest.raises(TopologyError):
        read_runs(text, 3, "x")
    with pytest.raises(TopologyError, match="of 3 numbers"):
        read_runs("0*4", 3, "x", fewer=True)


def good() -> dict[str, Any]:
    """A valid document to spoil."""
    table = (Device("nic", "eth0", near=("GPU 0",)),)
    devices = Devices((table,), (0, 0), (0, 0, 1, 1))
    topology = replace(Topology.regular(node=2, rank=2), devices=devices)
    topology = topology.with_links({}, {("node", 0, 1): Link(1e-6, 1e9)})
    document: dict[str, Any] = json.loads(topology.to_json())
    return document


def spoiled(path: str, value: object) -> str:
    """The valid document with one member replaced or added."""
    document: Any = good()
    *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
    place = document
    for step in way:
        place = place[step]
    place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "something else"),
        ("version", "1"),
        ("version", 0),
        ("version", True),
        ("size", 0),
        ("size", 10**12),
        ("size", 4.0),
        ("size", True),
        ("levels", []),
        ("levels", {}),
        ("levels", [{"name": "rank", "groups": "0..3"}] * 17),
        ("levels/0/name", "rank"),
        ("levels/0/name", "x" * 33),
        ("levels/0/name", 7),
        ("levels/0/groups", "0*4000000000"),
        ("levels/0/groups", "0..3"),
        ("levels/0/groups", "-1*4"),
        ("levels/0/groups", "999999999*4"),
        ("levels/0/groups", [0, 0, 1, 1]),
        ("levels/1/groups", "0*4"),
        ("levels/0/surprise", 1),
        ("levels/0/link/latency_s", -1),
        ("levels/0/link/latency_s", "fast"),
        ("levels/0/link/bytes_per_s", 0),
        ("levels/0/link/bytes_per_s", True),
        ("levels/0/link/bytes_per_s", 10**29),
        ("levels/0/link/rails", 0),
        ("levels/0/link/rails", 1.5),
        ("levels/0/link/source", "x" * 65),
        ("exceptions/0/groups", [0, 2]),
        ("exceptions/0/groups", [1, 0]),
        ("exceptions/0/groups", [0, True]),
        ("exceptions/0/groups", [0]),
        ("exceptions/0/level", "hall"),
        ("devices/of_node", "0*3"),
        ("devices/of_node", "5*2"),
        ("devices/of_node", "-7*2"),
        ("devices/tables/0/0/kind", "tpu"),
        ("devices/tables/0/0/near", [1]),
        ("devices/tables/0/0/numa", -2),
        ("devices/tables/0/0/name", "x" * 65),
        ("devices/tables", [[]] * 5000),
        ("unknown", 1),
    ],
)
def test_hostile_members_are_refused(path: str, value: object) -> None:
    with pytest.raises(TopologyError):
        Topology.from_json(spoiled(path, value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON"),
        ("null", "format"),
        ("[" * 900_000, "nested too deep"),
        ('{"a":' * 500_000, "nested too deep"),
        ("[" + "[]," * 2_000_000 + "[]]", "values"),
        ('{"format": "closeranks topology", "format": "x"}', "stands twice"),
        ('{"version": NaN}', "NaN is no number"),
        ('{"version": -Infinity}', "Infinity is no number"),
        ('{"version": ' + "9" * 100_000 + "}", "a number of 100000 digits"),
        (" " * ((1 << 24) + 1), "at most"),
        ('"\ud800"', "format"),
    ],
)
def test_hostile_texts_are_refused_fast(text: str, says: str) -> None:
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(TopologyError, match=says):
        Topology.from_json(text)
    assert time.perf_counter() - start < 5
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 << 20


def test_no_text_is_refused() -> None:
    with pytest.raises(TopologyError, match="the text is b"):
        Topology.from_json(b"{}")  # type: ignore[arg-type]


def test_a_newer_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(TopologyError, match=r"version 2.*reads up to 1; update closeranks"):
        Topology.from_json(spoiled("version", 2))


def test_a_hand_written_file_needs_little() -> None:
    text = """{"format": "closeranks topology", "version": 1, "size": 4, "levels": [
        {"name": "node", "groups": "0..1*2", "link": {"latency_s": 2e-6, "bytes_per_s": 25e9}},
        {"name": "rank", "groups": "0..3"}]}"""
    topology = Topology.from_json(text)
    assert topology.link(0, 3) == Link(2e-6, 25e9)
    assert topology.link(0, 1) == Topology.regular(rank=2).links["rank"]


def test_the_page_shows_a_file_that_is_read() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "topology.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    topology = Topology.from_json(example)
    assert topology.sizes("node").tolist() == [4] * 4
    assert topology.link(0, 8).bytes_per_s == 5e9
    assert topology.links["node"].rails == 2
