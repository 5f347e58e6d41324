"""Erasure groups: who protects whom, and what may be lost."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.placement.erasure_groups import Protection, protect
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Draw sites of switches of nodes of ranks, uneven at every level, ranks in any order."""
    paths = []
    for site in range(draw(st.integers(1, 3))):
        for switch in range(draw(st.integers(1, 3))):
            for node in range(draw(st.integers(1, 5))):
                paths += [(site, (site, switch), (site, switch, node))] * draw(st.integers(1, 3))
    paths = draw(st.permutations(paths))
    known = sorted({part for path in paths for part in path}, key=str)
    labels = [[known.index(path[level]) for path in paths] for level in range(3)]
    levels = ("site", "switch", "node", "rank")
    return Topology.from_groups(levels, [*labels, range(len(paths))])


def survives(protection: Protection, lost: tuple[int, ...]) -> bool:
    """Tell by counting whether nodes may be lost."""
    return all(sum(node in lost for node in ring) <= protection.parity for ring in protection.rings)


@given(topologies(), st.integers(1, 3), st.integers(2, 8))
def test_every_node_is_in_one_group_and_no_part_is_in_one_more_than_others(
    topology: Topology, parity: int, members: int
) -> None:
    members = max(members, parity + 1)
    protection = protect(topology, parity, members)
    nodes = topology.count("node")
    sizes = [len(ring) for ring in protection.rings]
    assert set(protection.group_of) == set(range(nodes))
    if nodes < members:
        assert sizes == [members]
        shares = Counter(protection.rings[0]).values()
        assert max(shares) - min(shares) <= 1
        return
    assert sum(sizes) == nodes
    assert members <= min(sizes) <= max(sizes) <= min(sizes) + 1
    for level in ("site", "switch"):
        row, own = topology.groups[topology.position(level)], topology.groups[2]
        for part in range(topology.count(level)):
            there = set(own[row == part].tolist())
            fair = -(-len(there) // len(sizes))
            assert all(len(there & set(ring)) <= fair for ring in protection.rings)


@given(topologies(), st.integers(1, 3))
def test_the_chance_to_survive_is_what_counting_gives(topology: Topology, parity: int) -> None:
    protection = protect(topology, parity)
    nodes = range(topology.count("node"))
    for lost in range(1, min(3, len(nodes)) + 1):
        cases = list(combinations(nodes, lost))
        fine = sum(survives(protection, case) for case in cases)
        assert protection.survival(lost) == pytest.approx(fine / len(cases))
    assert protection.keeps_nodes == (protection.survival(1) == 1)
    assert protection.survival(len(nodes) + 1) == 0


@given(topologies(), st.integers(1, 3))
def test_a_group_that_nobody_asked_for_keeps_nodes_where_there_are_two(
    topology: Topology, parity: int
) -> None:
    assert protect(topology, parity).keeps_nodes == (topology.count("node") > 1)


@pytest.mark.parametrize(
    ("group", "parity", "chances"),
    [(2, 1, (1, 0.984, 0.952)), (4, 1, (1, 0.952, 0.860)), (8, 2, (1, 1, 0.989)),
     (16, 2, (1, 1, 0.946)), (16, 4, (1, 1, 1))],
)  # fmt: skip
def test_chances_are_those_of_the_literature(
    group: int, parity: int, chances: tuple[float, ...]
) -> None:
    protection = protect(Topology.regular(node=64, rank=2), parity, group)
    found = tuple(round(protection.survival(lost), 3) for lost in (1, 2, 3))
    assert found == chances


def test_switches_are_spread_over_groups() -> None:
    protection = protect(Topology.regular(switch=4, node=4, rank=2), 1, 4)
    assert protection.rings == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert str(protection).splitlines() == [
        "4 erasure groups of 4 members, 1 of which may be lost; 1.33 times the data in memory",
        "  group 0: nodes 0-12:4",
        "  group 1: nodes 1-13:4",
        "  group 2: nodes 2-14:4",
        "  group 3: nodes 3-15:4",
        "survives the loss of any one switch, node",
        "nodes lost at random, and nothing lost: 1: 100 %, 2: 80 %, 3: 45.71 %",
    ]


def test_it_says_so_where_it_protects_no_node() -> None:
    alone = str(protect(Topology.regular(rank=4)))
    assert "  group 0: nodes 0 (4)" in alone
    assert "no node may be lost: one node has them all" in alone
    few = str(protect(Topology.regular(node=2, rank=2), 1, 4))
    assert "no node may be lost: 2 nodes are too few" in few


def test_every_rank_of_the_fullest_node_has_a_lane() -> None:
    uneven = Topology.from_groups(("node", "rank"), [[0, 0, 0, 1, 1, 2, 2], range(7)])
    assert protect(uneven).lanes == (3,)
    assert protect(Topology.regular(rank=6), 1, 3).lanes == (2,)
    assert protect(Topology.regular(node=2, rank=4), 2).lanes == (2,)


def test_ten_thousand_ranks_are_told_in_a_page() -> None:
    protection = protect(Topology.regular(switch=50, node=25, rank=8), 2)
    assert len(str(protection).splitlines()) == 20
    assert 0.999 < protection.survival(3) < 1


@pytest.mark.parametrize(
    ("parity", "group", "words"),
    [
        (0, None, "parity=0; give a whole number from 1 on"),
        (2, 2, "a group of 2 of which 2 may be lost; give parity < group <= 255"),
        (1, 300, "a group of 300"),
    ],
)
def test_there_is_no_such_group(parity: int, group: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        protect(Topology.regular(node=4, rank=1), parity, group)
