"""Bytes, levels, time and scale of conversions."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError
from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split, conversion
from closeranks.partitioning.redistribution.conversion_plan import ROUND_BYTES
from tests.partitioning.redistribution.interpreter import word

WHOLE = 840 * 3 * 8


def one(size: int, given: str, taken: str, topology: Topology | None = None) -> Any:
    """Make a conversion of 840 x 3 numbers on one axis."""
    mesh = Mesh({"x": size})
    source, target = (Layout((840, 3), word(how), mesh=mesh) for how in (given, taken))
    return conversion(source, target, topology=topology)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("topology", [False, True])
def test_bytes_in_all_are_those_of_the_formulas(size: int, topology: bool) -> None:
    machine = Topology.regular(node=size // 2, rank=2) if topology and size % 2 == 0 else None
    n = size
    for given, taken, nbytes in (
        ("0", "B", WHOLE * (n - 1)), ("B", "0", 0), ("+", "0", WHOLE * (n - 1)),
        ("+", "B", 2 * WHOLE * (n - 1)), ("B", "+", 0), ("+", "+", 0), ("0", "0", 0),
    ):  # fmt: skip
        made = one(size, given, taken, machine)
        assert made.total_bytes == nbytes, (given, taken)
        assert sum(map(made.received, range(size))) == nbytes


def test_equal_holders_share_the_work() -> None:
    mesh, other = Mesh({"x": 4, "y": 4}), Mesh({"x": 16})
    source = Layout((64, 3), [Split(0), Broadcast()], mesh=mesh)
    for target in (
        Layout((64, 3), [Broadcast()], mesh=other),
        Layout((64, 3), [Broadcast(), Split(0)], mesh=mesh),
        Layout((64, 3), [Split(0)], mesh=Mesh({"x": 16}, order=np.arange(16)[::-1])),
    ):
        made = conversion(source, target)
        sent = [made.sent(rank) for rank in range(16)]
        assert max(sent) <= 2 * sum(sent) / 16, sent


def test_ranks_of_a_node_that_hold_the_same_share_the_wire() -> None:
    mesh = Mesh({"x": 2, "y": 2, "z": 4})
    source = Layout((256, 256), word("0BB"), mesh=mesh)
    target = Layout((256, 256), word("10B"), mesh=mesh)
    made = conversion(source, target, topology=Topology.regular(node=4, rank=4))
    assert made.bytes_per_level["node"] == made.group_bytes_per_level["node"] / 4


@pytest.mark.parametrize("given", ["0", "+"])
def test_those_by_whom_elements_enter_a_node_share_the_work(given: str) -> None:
    topology = Topology.regular(node=4, rank=4)
    made = one(16, given, "B", topology)
    across = Counter(
        move.receiver
        for rank in range(16)
        for move in made.part(rank).receives
        if move.stage and topology.level_index(move.sender, move.receiver) == 0
    )
    assert set(across.values()) == {3}
    assert len(across) == 16


def test_the_nearest_holder_sends() -> None:
    topology = Topology.regular(node=2, rank=3)
    source = Layout((6,), [Broadcast(), Split(0)], mesh=Mesh({"x": 2, "y": 3}))
    target = Layout((6,), [Broadcast()], mesh=Mesh({"x": 6}))
    made = conversion(source, target, topology=topology)
    assert made.bytes_per_level["node"] == 0
    assert made.stages == 1


def test_levels_and_seconds() -> None:
    links = {"node": Link(1e-3, 1e6), "rank": Link(1e-6, 1e9)}
    topology = Topology.regular(node=2, rank=2).with_links(links)
    made = one(4, "0", "B", topology)
    part = WHOLE // 4
    assert made.stages == 2
    assert made.bytes_per_level == {"node": part, "rank": 2 * part}
    assert made.group_bytes_per_level == {"node": 2 * part, "rank": 3 * part}
    # Over the node link two parts in each direction; inside, a part of each, then another.
    assert made.seconds == pytest.approx(1e-3 + 1e-6 + 2 * part / 1e6 + 1e-6 + part / 1e9, rel=1e-3)
    assert one(4, "0", "B").seconds is None
    unknown = topology.with_links({"node": Link(None, None)})
    with pytest.raises(TopologyError, match="node"):
        _ = one(4, "0", "B", unknown).seconds


def test_peak_is_bounded() -> None:
    mesh = Mesh({"x": 2})
    small, large = (
        conversion(Layout((n, 8), [Split(0)], mesh=mesh), Layout((n, 8), [Split(1)], mesh=mesh))
        for n in (16, 1 << 22)
    )
    assert small.peak_bytes(0) == small.sent(0) + small.received(0)
    assert large.peak_bytes(1) == 2 * ROUND_BYTES


def test_a_part_between_pencils_on_16384_ranks_takes_no_longer_than_200_ms() -> None:
    mesh = Mesh({"x": 128, "y": 128})
    shape = (4096, 4096, 4096)
    topology = Topology.regular(site=4, node=512, rank=8)
    source = Layout(shape, [Split(0), Split(1)], mesh=mesh)
    target = Layout(shape, [Split(1), Split(2)], mesh=mesh)
    for machine in (None, topology):
        began = time.process_time()
        made = conversion(source, target, topology=machine)
        received = made.received(9_999)
        assert time.process_time() - began < 0.2
        assert received == 8 * (
            32 * 32 * 4096 - (32 * 32 * 32 if 9_999 // 128 == 9_999 % 128 else 0)
        )


def test_it_prints() -> None:
    made = one(4, "0", "B", Topology.regular(node=2, rank=2))
    assert repr(made).startswith("Conversion(Layout(")
    text = str(made)
    assert "840x3 of 8 bytes on 4 ranks" in text
    assert "node: busiest rank 5040 bytes" in text
    assert f"in 2 stages, {made.seconds * 1e6:.3g} us predicted" in text
    assert str(one(4, "0", "B")).splitlines()[3].endswith("in 1 stage")
    unknown = Topology.regular(node=2, rank=2).with_links({"node": Link(None, None)})
    assert "in 2 stages\n" in str(one(4, "0", "B", unknown))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": Layout((4, 5), [Split(0)], mesh=Mesh({"x": 4}))}, "global shapes"),
        ({"target": Layout((4, 4), [Split(0)], mesh=Mesh({"x": 5}))}, "differ in ranks"),
        ({"target": "rows"}, "target is 'rows'"),
        ({"target": Layout((4, 4), [Partial("max")], mesh=Mesh({"x": 4}))}, "mixed: sum and max"),
        ({"itemsize": 0}, "itemsize is 0"),
        ({"topology": Topology.regular(rank=3)}, "3 ranks in the topology"),
        ({"topology": 3}, "topology is 3"),
    ],
)
def test_bad_input(changes: dict[str, Any], said: str) -> None:
    source = Layout((4, 4), [Partial()], mesh=Mesh({"x": 4}))
    words = {"source": source, "target": source} | changes
    with pytest.raises(UsageError, match=said):
        conversion(**words)
    made = conversion(source, source)
    with pytest.raises(UsageError, match="rank is 4"):
        made.sent(4)
