"""Make one topology of what all ranks said; pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from closeranks.comms.discovery import level_rules as level
from closeranks.comms.discovery.device_table import devices, node_link
from closeranks.comms.discovery.rank_reports import VERSION, Findings, Records
from closeranks.comms.discovery.slurm_environment import Address
from closeranks.comms.topology.level_table import renumber
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError


def assemble(findings: Findings) -> Topology:
    """Make the topology all ranks agree on.

    Parameters
    ----------
    findings : Findings
        What all ranks said; the same on every rank.

    Returns
    -------
    Topology
        Links are defaults, but for the speed of the network cards.

    Raises
    ------
    TopologyError
        If memory and the host names disagree about the nodes, or a node could
        not read its surroundings; the same on every rank.
    """
    records = findings.records
    other = np.flatnonzero(records["version"] != VERSION)[:8].tolist()
    if other:
        raise TopologyError("discover", f"ranks {other} run another closeranks", "install one")
    _raise_errors(findings)
    check_nodes(records)
    nodes = renumber(records["leader"])
    texts = findings.texts
    addresses = [Address(tuple(t["levels"]), tuple(t["labels"])) for t in texts]
    places = [(name, records[name].astype(np.int64)) for name in ("package", "numa", "l3")]
    found = level.drop_trivial(
        [
            *level.above(nodes, [text["site"] for text in texts], addresses),
            ("node", nodes),
            *level.inside(nodes, places),
            ("rank", np.arange(len(records), dtype=np.int32)),
        ]
    )
    names = tuple(name for name, _ in found)
    topology = Topology(names, np.stack([row for _, row in found]), devices=devices(findings))
    return topology.with_links(_links(findings, topology))


def _links(findings: Findings, topology: Topology) -> dict[str, Link]:
    """Return the links that network cards tell of, up to the site.

    Between switches all nodes of a group can send at once; that holds until
    a measurement says otherwise.
    """
    node = node_link(findings, topology.links["node"])
    links = {"node": node}
    leaders = findings.leaders
    for name in topology.levels[: topology.position("node")]:
        if name != "site":
            fewest = int(np.bincount(topology.groups[topology.position(name), leaders]).min())
            rails = min(4096, (node.rails or 1) * fewest)
            links[name] = replace(topology.links[name], bytes_per_s=node.bytes_per_s, rails=rails)
    return links


def _raise_errors(findings: Findings) -> None:
    for leader, text in zip(findings.leaders.tolist(), findings.texts, strict=True):
        if text["error"]:
            host = findings.records["host"][leader].decode(errors="replace")
            raise TopologyError("discover", f"node {host}: {text['error']}", "correct it there")


def check_nodes(records: Records) -> None:
    """Compare who shares memory with the host names.

    Ranks that share memory under different host names are accepted if their
    kernel is the same (containers on one machine); ranks of one host name
    that do not are accepted if their kernels differ (machines named alike).

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Of all ranks.

    Raises
    ------
    TopologyError
        If neither explains it, with both views.
    """
    by_memory = renumber(records["leader"])
    by_name = renumber(records["host_digest"])
    if np.array_equal(by_memory, by_name):
        return
    kernels = records["boot_digest"]
    for group in _split_groups(by_memory, by_name):
        ranks = np.flatnonzero(by_memory == group).astype(np.int64)
        if len(np.unique(kernels[ranks])) > 1 or not kernels[ranks].all():
            problem = "they share a node's memory, their host names and kernels differ"
            raise _disagreement(problem, records, ranks)
    for group in _split_groups(by_name, by_memory):
        ranks = np.flatnonzero(by_name == group).astype(np.int64)
        machines = len(_split_pairs(by_memory[ranks], kernels[ranks]))
        if len(np.unique(kernels[ranks])) < machines or not kernels[ranks].all():
            problem = "they share no memory, their host name and kernel are one"
            raise _disagreement(problem, records, ranks)


def _split_pairs(a: npt.ArrayLike, b: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return the different pairs of two rows."""
    left, right = np.asarray(a), np.asarray(b)
    return sorted(set(zip(left.tolist(), right.tolist(), strict=True)))


def _split_groups(outer: level.Row, inner: level.Row) -> list[int]:
    """Return the groups of one row that another row splits."""
    groups = [group for group, _ in _split_pairs(outer, inner)]
    return sorted({group for group in groups if groups.count(group) > 1})


def _disagreement(problem: str, records: Records, ranks: npt.NDArray[np.int64]) -> TopologyError:
    shown = [int(rank) for rank in ranks[:8]]
    views = ", ".join(
        f"rank {rank} on {records['host'][rank].decode(errors='replace')!r} "
        f"shares memory with rank {records['leader'][rank]}"
        for rank in shown
    )
    more = f" and {len(ranks) - len(shown)} more" if len(ranks) > len(shown) else ""
    remedy = (
        "let the containers of a node share its /dev/shm (--ipc=host), or pass topology= to init"
    )
    return TopologyError("discover", f"{problem}: {views}{more}", remedy)
