"""What ranks tell each other, merged: levels, nodes, devices, bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closeranks.comms.discovery import hwloc
from closeranks.comms.discovery.discovery import assemble, surroundings
from closeranks.comms.discovery.node_hardware import describe
from closeranks.comms.discovery.rank_reports import (
    RECORD,
    Sighting,
    decode,
    encode,
    first_of_kind,
    lengths,
)
from closeranks.comms.discovery.slurm_environment import Address, address, job_nodes
from closeranks.comms.topology.node_description import Fact, Nic, NodeDescription, bound_domain
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError

Recorded = Callable[[str], tuple[Path, Any]]
BARE = NodeDescription("x")


def merge(
    seen: Sequence[Sighting],
    environ: Sequence[Mapping[str, str]] | None = None,
    nodes: Sequence[NodeDescription] | None = None,
) -> tuple[Topology, int]:
    """Do what `discover` does, without MPI; the bytes all ranks receive."""
    reports = [
        encode(
            sight,
            rank,
            surroundings(environ[rank] if environ else {}, sight.host),
            nodes[rank] if nodes else BARE,
        )
        for rank, sight in enumerate(seen)
    ]
    records = np.concatenate([report.record for report in reports])
    counts = lengths(records)
    parts = [(r.text + r.hardware)[:n] for r, n in zip(reports, counts.tolist(), strict=True)]
    payload = b"".join(parts)
    assert len(payload) == counts.sum()
    return assemble(decode(records, payload)), records.nbytes + len(payload)


def ranks(*nodes: int, boot: str | None = None) -> list[Sighting]:
    """Ranks on numbered hosts that agree with MPI's view."""
    first = {node: nodes.index(node) for node in nodes}
    return [Sighting(f"n{node}", boot or f"boot{node}", first[node]) for node in nodes]


def test_uneven_nodes_in_any_order() -> None:
    topology, _ = merge(ranks(4, 2, 9, 4, 2, 4))
    assert topology.levels == ("node", "rank")
    assert topology.groups[0].tolist() == [0, 1, 2, 0, 1, 0]


def test_one_rank_and_one_rank_a_node_keep_both_levels() -> None:
    assert merge(ranks(0))[0].levels == ("node", "rank")
    assert merge(ranks(0, 1, 2))[0].groups.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_hwloc_synthetic_gives_the_exact_table(fixtures: Path) -> None:
    found = hwloc.parse((fixtures / "hwloc_2x2x2x4.xml").read_text())
    seen = [
        Sighting(
            "n0",
            "b",
            0,
            bound_domain({c}, found.packages),
            bound_domain({c}, found.numa),
            bound_domain({c}, found.l3),
        )
        for c in range(32)
    ]
    topology, _ = merge(seen)
    assert topology.levels == ("node", "package", "numa", "l3", "rank")
    cores = np.arange(32)
    expected = [cores * 0, cores // 16, cores // 8, cores // 4, cores]
    assert topology.groups.tolist() == np.array(expected).tolist()


def test_a_rank_that_may_leave_its_domain_leaves_the_level_out(fixtures: Path) -> None:
    found = hwloc.parse((fixtures / "hwloc_2x2x2x4.xml").read_text())
    masks = [{0}, {1}, {8, 12}, {9}]
    seen = [
        Sighting(
            "n0",
            "b",
            0,
            bound_domain(m, found.packages),
            bound_domain(m, found.numa),
            bound_domain(m, found.l3),
        )
        for m in masks
    ]
    topology, _ = merge(seen)
    assert topology.levels == ("node", "numa", "rank")
    assert topology.groups[1].tolist() == [0, 0, 1, 1]


def test_levels_that_do_not_nest_are_left_out() -> None:
    seen = [Sighting("n0", "b", 0, 0, numa, l3) for numa, l3 in ((0, 0), (0, 1), (1, 1), (1, 2))]
    assert merge(seen)[0].levels == ("node", "numa", "rank")


def test_caches_around_numa_domains_are_outside_them() -> None:
    seen = [Sighting("n0", "b", 0, 0, r // 2, r // 4) for r in range(8)]
    assert merge(seen)[0].levels == ("node", "l3", "numa", "rank")


def test_recorded_node_gives_devices_rails_and_speed(recorded: Recorded) -> None:
    root, library = recorded("node_8gpu_8nic.json")
    node = describe(root, "", library)
    seen = [
        Sighting(f"n{r // 8}", f"b{r // 8}", r // 8 * 8, (r % 8) // 4, (r % 8) // 4, (r % 8) // 4)
        for r in range(16)
    ]
    topology, _ = merge(seen, nodes=[node] * 16)
    assert topology.levels == ("node", "package", "rank")
    link = topology.links["node"]
    assert (link.bytes_per_s, link.rails, link.source) == (50e9, 8, "nic speed")
    assert len(topology.devices.tables) == 1
    assert topology.devices.of_node == (0, 0)
    near = [d.name for d in topology.devices.near(12, 1, "nic")]
    assert near == ["mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
    assert Topology.from_json(topology.to_json()) == topology
    few, _ = merge([seen[r]._replace(leader=0) for r in (0, 1, 4, 5)], nodes=[node] * 4)
    assert few.links["node"].rails == 4
    unbound, _ = merge([s._replace(numa=-1) for s in seen], nodes=[node] * 16)
    assert unbound.links["node"].rails == 1


def test_rails_are_the_cards_ranks_are_bound_to() -> None:
    cards = tuple(Nic(f"eth{i}", Fact(1e9), usable=Fact(True)) for i in range(2))
    node = NodeDescription("x", nics=cards)
    seen = [s._replace(nic=r // 2 % 2) for r, s in enumerate(ranks(0, 0, 0, 0, 1, 1, 1, 1))]
    assert merge(seen, nodes=[node] * 8)[0].links["node"].rails == 2
    seen = [s._replace(nic=0 if r < 4 else s.nic) for r, s in enumerate(seen)]
    assert merge(seen, nodes=[node] * 8)[0].links["node"].rails == 1


def test_sites_and_switches() -> None:
    leaves = ["s0.l0", "s0.l1", "s1.l2", "s1.l3"]
    environ = [
        {
            "SLURM_TOPOLOGY_ADDR": f"{leaves[n // 2]}.n{n}",
            "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
            "CLOSERANKS_SITE": "west" if n < 4 else "east",
        }
        for n in range(8)
        for _ in range(2)
    ]
    topology, _ = merge(ranks(*(r // 2 for r in range(16))), environ)
    assert topology.levels == ("site", "switch", "node", "rank")
    assert topology.groups[:3].tolist() == [
        [r // 8 for r in range(16)],
        [r // 4 for r in range(16)],
        [r // 2 for r in range(16)],
    ]
    assert topology.links["switch"].rails == 2 * (topology.links["node"].rails or 0)


def test_blocks() -> None:
    environ = [
        {"SLURM_TOPOLOGY_ADDR": f"b{r // 4}.n{r // 2}", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
        for r in range(8)
    ]
    topology, _ = merge(ranks(*(r // 2 for r in range(8))), environ)
    assert topology.levels == ("block", "node", "rank")
    assert topology.groups[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_shallow_and_unknown_addresses() -> None:
    def environ(text: str) -> dict[str, str]:
        pattern = ".".join(["switch"] * text.count(".") + ["node"])
        return {"SLURM_TOPOLOGY_ADDR": text, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}

    seen = ranks(0, 0, 1, 1, 2, 2)
    uneven = [environ(t) for t in ("top.a.n0", "top.a.n0", "top.b.n1", "top.b.n1", "c.n2", "c.n2")]
    topology, _ = merge(seen, uneven)
    assert topology.levels == ("switch2", "node", "rank")
    assert topology.groups[0].tolist() == [0, 0, 0, 0, 1, 1]
    assert merge(seen, [*uneven[:4], {}, {}])[0].levels == ("node", "rank")


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        (
            "spine.leaf1.n1",
            "switch.switch.node",
            Address(("switch2", "switch"), ("spine", "leaf1")),
        ),
        ("block1.n1", "block.node", Address(("block",), ("block1",))),
        ("ring0:3.n1", "ring:position.node", Address(("ring",), ("ring0",), (3,))),
        ("t:1:0:2.n1", "torus:x:y:z.node", Address(("torus",), ("t",), (1, 0, 2))),
        ("spine.leaf1.n2", "switch.switch.node", Address()),
        ("n1", "node", Address()),
        ("", "", Address()),
    ],
)
def test_addresses_of_slurm(text: str, pattern: str, expected: Address) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": text, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}
    assert address(environ, "n1.cluster.example") == expected
    assert address({**environ, "SLURMD_NODENAME": "n1"}, "other") == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_TOPOLOGY_ADDR": "leaf", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"},
        {"SLURM_TOPOLOGY_ADDR": "x" * 5000, "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"},
        {"SLURM_TOPOLOGY_ADDR": "a.n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "s." * 20 + "node"},
        {"CLOSERANKS_SITE": "x" * 100},
    ],
)
def test_a_node_that_cannot_read_its_place_is_named_on_all_ranks(environ: dict[str, str]) -> None:
    with pytest.raises(TopologyError, match=r"node n1: .*correct it there"):
        merge(ranks(0, 1), [{}, environ])


def test_node_lists() -> None:
    assert job_nodes({"SLURM_JOB_NODELIST": "n[1-2,10]"}) == ("n1", "n2", "n10")
    assert job_nodes({}) == ()
    with pytest.raises(TopologyError, match="SLURM_JOB_NODELIST"):
        job_nodes({"SLURM_JOB_NODELIST": "n[1-"})


def test_memory_and_host_names_that_disagree_are_shown() -> None:
    alone = [Sighting("n0", "b", 0), Sighting("n0", "b", 1)]
    with pytest.raises(
        TopologyError, match=r"rank 1 on 'n0' shares memory with rank 1; let the containers"
    ):
        merge(alone)
    mixed = [Sighting("n0", "b0", 0), Sighting("n1", "b1", 0)]
    with pytest.raises(
        TopologyError, match=r"they share a node's memory, their host names.*rank 1 on 'n1'"
    ):
        merge(mixed)
    with pytest.raises(
        TopologyError, match="they share a node's memory, their host names and kernels differ"
    ):
        merge([s._replace(boot_id="") for s in mixed])


def test_containers_and_machines_named_alike_are_accepted() -> None:
    containers = [Sighting("c0", "b", 0), Sighting("c1", "b", 0), Sighting("c2", "b", 0)]
    assert merge(containers)[0].groups[0].tolist() == [0, 0, 0]
    alike = [Sighting("localhost", f"b{r // 2}", r // 2 * 2) for r in range(4)]
    assert merge(alike)[0].groups[0].tolist() == [0, 0, 1, 1]
    unknown = [s._replace(boot_id="") for s in alike]
    with pytest.raises(TopologyError, match="host name and kernel"):
        merge(unknown)


def test_another_version_is_refused() -> None:
    report = encode(Sighting("n0", "b", 0), 0, surroundings({}, "n0"), BARE)
    records = report.record.copy()
    records["version"] = 9
    with pytest.raises(TopologyError, match=r"ranks \[0\] run another closeranks"):
        assemble(decode(records, report.text + report.hardware))


def test_equal_nodes_travel_once_and_16384_ranks_stay_small(recorded: Recorded) -> None:
    root, library = recorded("node_8gpu_8nic.json")
    node = describe(root, "", library)
    seen = [
        Sighting(f"node{r // 8:04d}.cluster.example", f"boot-{r // 8}", r // 8 * 8, numa=r % 8 // 4)
        for r in range(16384)
    ]
    environ = [
        {
            "SLURM_TOPOLOGY_ADDR": f"core.spine{n // 256}.leaf{n // 32}.node{n:04d}",
            "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.switch.node",
        }
        for n in range(2048)
        for _ in range(8)
    ]
    nodes = [node if r % 8 == 0 else BARE for r in range(16384)]
    start = time.perf_counter()
    topology, nbytes = merge(seen, environ, nodes)
    assert time.perf_counter() - start < 60
    assert RECORD.itemsize <= 128
    assert nbytes / 16384 <= 256
    assert topology.levels == ("switch2", "switch", "node", "numa", "rank")
    assert [topology.count(name) for name in topology.levels] == [8, 64, 2048, 4096, 16384]
    assert len(topology.devices.tables) == 1


def test_different_nodes_send_their_own_description() -> None:
    kinds = [NodeDescription("x", nics=(Nic(f"eth{n % 3}", usable=Fact(True)),)) for n in range(6)]
    seen = ranks(*range(6))
    reports = [encode(s, r, surroundings({}, s.host), kinds[r]) for r, s in enumerate(seen)]
    records = np.concatenate([report.record for report in reports])
    assert first_of_kind(records).tolist() == [True, True, True, False, False, False]
    topology, _ = merge(seen, nodes=kinds)
    assert [topology.devices.on(n)[0].name for n in range(6)] == ["eth0", "eth1", "eth2"] * 2
