"""Ports, rails and gateways of regular and irregular topologies."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.builders.patterns.packing_order import order_of
from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.comms.topology.topology import Topology


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Sites of nodes of ranks, uneven, ranks in any order."""
    size = draw(st.integers(1, 24))
    node = draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    site_of = draw(st.lists(st.integers(0, 2), min_size=7, max_size=7))
    rows = [[site_of[n] for n in node], node, list(range(size))]
    return Topology.from_groups(("site", "node", "rank"), rows)


def test_two_sites_of_two_nodes_of_two_ranks() -> None:
    tree = hierarchy(Topology.regular(site=2, node=2, rank=2))
    assert [tier.level for tier in tree.tiers] == ["rank", "node", "site"]
    assert tree.ports[1].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert tree.ports[2].tolist() == [[0, 2, 1, 3], [4, 6, 5, 7]]  # (k, j): k of child j
    assert [rail.members for rail in tree.rails(3)] == [[2, 3], [1, 3], [3, 7]]


def test_uneven_round_robin_nodes_have_as_many_ports_as_the_least() -> None:
    row = [0, 1, 2, 0, 1, 2, 0]
    tree = hierarchy(Topology.from_groups(("node", "rank"), [row, list(range(7))]))
    assert tree.ports[1].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tree.gateways[1].tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert [rail.owners for rail in tree.rails(6)] == [2]
    assert not tree.is_rank_order


def test_levels_that_say_nothing_new_are_passed_over() -> None:
    assert hierarchy(Topology.regular(site=3, node=1, rank=4)).depth == 2
    assert hierarchy(Topology.regular(site=1, node=3, rank=4)).depth == 2
    assert hierarchy(Topology.regular(site=1, node=1, rank=4)).depth == 1
    assert hierarchy(Topology.regular(rank=1)).depth == 0
    # one node a site: what crosses nodes crosses sites
    levels = [tier.level for tier in hierarchy(Topology.regular(site=3, node=1, rank=4)).tiers]
    assert levels == ["rank", "site"]


@given(topologies())
@settings(max_examples=200, deadline=None)
def test_every_rail_joins_one_port_of_each_child(topology: Topology) -> None:
    tree = hierarchy(topology)
    for rank in range(topology.size):
        for rail in tree.rails(rank):
            row, inner = tree.rows[rail.tier], tree.rows[rail.tier - 1]
            assert rail.members[rail.me] == rank
            assert {int(row[member]) for member in rail.members} == {int(row[rank])}
            children = [int(inner[member]) for member in rail.members]
            assert sorted(children) == np.unique(inner[row == row[rank]]).tolist()
            assert rail.members == tree.rail(rail.tier, rail.members[0]).members
            for member in rail.members:
                if member != rank:
                    level = topology.level_index(rank, member)
                    assert topology.levels[level] == rail.level


@given(topologies())
@settings(max_examples=200, deadline=None)
def test_gateways_are_ports_of_the_own_group(topology: Topology) -> None:
    tree: Hierarchy = hierarchy(topology)
    for tier in range(tree.depth):
        for rank in range(topology.size):
            group = tree.rows[tier][rank]
            port = tree.ports[tier][group, tree.gateways[tier][rank]]
            assert tree.rows[tier][port] == group
            assert (port == rank) == tree.is_port[tier][rank]


@given(topologies())
@settings(max_examples=200, deadline=None)
def test_packed_order_keeps_what_a_gateway_serves_together(topology: Topology) -> None:
    tree = hierarchy(topology)
    if tree.depth < 2:
        return
    order = order_of(topology)
    assert sorted(order.ranks.tolist()) == list(range(topology.size))
    for tier in range(tree.depth):
        for rank in range(topology.size):
            group, gateway = int(tree.rows[tier][rank]), int(tree.gateways[tier][rank])
            low, high = order.span(tier, group, gateway)
            same = (tree.rows[tier] == group) & (tree.gateways[tier] == gateway)
            assert sorted(order.ranks[low:high].tolist()) == np.flatnonzero(same).tolist()
    assert [rank + i * step for _, rank, n, step in order.pieces for i in range(n)] == (
        order.ranks.tolist()
    )


def test_nodes_are_what_shares_memory_where_the_topology_says_so() -> None:
    assert len(nodes_of(Topology.regular(node=4, numa=2, rank=2))) == 4
    assert len(nodes_of(Topology.regular(site=2, node=4, rank=2))) == 8
    assert len(nodes_of(Topology.regular(site=2, node=4, rank=1))) == 2
    assert len(nodes_of(Topology.regular(node=1, numa=2, rank=3))) == 2
    assert len(nodes_of(Topology.regular(switch=3, rank=2))) == 3


def test_equal_topologies_share_their_ports() -> None:
    one, other = Topology.regular(node=2, rank=3), Topology.regular(node=2, rank=3)
    assert hierarchy(one) is hierarchy(other)
