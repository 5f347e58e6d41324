"""Labs as data: sizes, addresses, sites, rates, and the commands that follow."""

from __future__ import annotations

import json
import os

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.lab import network, scripts, supervisor
from closeranks.jobs.lab.network import Flow, flows_between_sites, flows_within_sites
from closeranks.jobs.lab.node import Node
from closeranks.jobs.lab.plan import BURST_BYTES, HEAD, LabPlan, parse_rate, parse_slots


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("200mbit", 25e6), ("1gbit", 125e6), ("1.5Gbit", 187.5e6), ("1000kbit", 125e3)],
)
def test_rates_are_read_as_tc_writes_them(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "200", "fast", "200MB", "-1mbit", "nanmbit", "1bit", "1tbit"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("nodes", "per_node", "slots"),
    [(4, "2", (2, 2, 2, 2)), (3, "3,2,2", (3, 2, 2)), (0, "3,2", (3, 2))],
)
def test_slots(nodes: int, per_node: str, slots: tuple[int, ...]) -> None:
    assert parse_slots(nodes, per_node) == slots


def test_every_nic_has_its_own_address() -> None:
    plan = LabPlan((1,) * 250, nics=16)
    seen = {plan.address(node, nic) for node in range(250) for nic in range(16)}
    assert len(seen) == 250 * 16
    assert plan.address(0) == "10.77.0.1"
    assert HEAD not in seen


def test_sites_are_contiguous_and_near_equal() -> None:
    plan = LabPlan((1,) * 7, sites=3)
    assert [plan.members(site) for site in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_programs_inside_read_what_the_lab_is() -> None:
    told = json.loads(LabPlan((3, 2, 2), order="round-robin", rate=25e6, nics=2).to_json())
    assert told["nodes"] == 3
    assert told["slots"] == [3, 2, 2]
    assert told["order"] == "round-robin"
    assert told["rate_bytes_per_s"] == 25e6
    assert told["burst_bytes"] == BURST_BYTES
    assert (told["nics"], told["sites"]) == (2, 1)


def test_both_ends_of_a_cable_are_limited() -> None:
    assert network.bucket("eth0", 25e6).startswith(
        "qdisc add dev eth0 root tbf rate 200000000bit burst 131072 "
    )


def test_two_sites_are_joined_by_one_wire_more_by_a_star() -> None:
    assert network.trunks(LabPlan((1, 1))) == []
    assert network.trunks(LabPlan((1, 1), sites=2)) == ["trunk0", "trunk1"]
    assert len(network.trunks(LabPlan((1, 1, 1), sites=3))) == 6
    assert "link set trunk1 master site1 up" in network.backbone(LabPlan((1, 1), sites=2))


def test_several_nics_have_routes_by_source() -> None:
    lines = network.addresses(LabPlan((2, 2), nics=2), 1)
    assert "addr add 10.77.1.2/16 dev eth1" in lines
    assert "rule add from 10.77.1.2 table 101" in lines
    assert not [line for line in network.addresses(LabPlan((2, 2)), 1) if "rule" in line]


def test_measured_flows_share_no_nic() -> None:
    flows = flows_within_sites(LabPlan((1,) * 5, sites=2, nics=2))
    assert len({(flow.source, flow.nic) for flow in flows}) == len(flows)
    assert len({(flow.target, flow.nic) for flow in flows}) == len(flows)
    assert flows_between_sites(LabPlan((1,) * 4, sites=2)) == [Flow(0, 2, 0), Flow(2, 0, 0)]
    assert flows_between_sites(LabPlan((1, 1))) == []


def test_the_agent_knows_every_node() -> None:
    text = scripts.agent([Node(0, "node0", 11), Node(1, "node1", 12)], "/a b")
    assert "node0|*@node0) pid=11 ;;" in text
    assert "cd '/a b'" in text


def test_a_rank_learns_its_site_and_nic() -> None:
    text = scripts.rank(LabPlan((2, 2), sites=2, nics=2), 1)
    assert "CLOSERANKS_SITE=site1" in text
    assert "local_rank % 2" in text
    assert "export" not in scripts.rank(LabPlan((2, 2)), 1)


def test_all_nodes_share_the_cores_of_this_machine() -> None:
    assert supervisor.describe(LabPlan((2, 2)), cores=3).crowded
    assert not supervisor.describe(LabPlan((2, 2)), cores=4).crowded


def test_nodes_know_nothing_of_a_batch_job(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n1", "PBS_NODEFILE": "/x", "PATH": "/bin"}
    monkeypatch.setattr(os, "environ", {**given, "SLURM_CONF": "/y"})
    supervisor._leave_allocation()
    assert os.environ == {"PATH": "/bin", "SLURM_CONF": "/y"}
