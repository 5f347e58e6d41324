"""Discovery of the machine a job runs on; the same topology on every rank.

`discover` makes two collectives of fixed cost.  Everything else is local
reading, and `assemble`, a pure merge of the records of all ranks.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.comms.discovery import level_rules as level
from closeranks.comms.discovery import slurm_environment
from closeranks.comms.discovery.node_hardware import describe_here
from closeranks.comms.discovery.rank_reports import (
    RECORD,
    VERSION,
    Findings,
    RankReport,
    Records,
    Sighting,
    decode,
    devices,
    encode,
    lengths,
    node_link,
)
from closeranks.comms.discovery.slurm_environment import Address
from closeranks.comms.exit import forked_child
from closeranks.comms.liveness.collective_creation import all_or_none
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.mpi.messages import Bytes, allgather_bytes
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.comms.shm.node_identity import boot_id
from closeranks.comms.topology.level_table import renumber
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import NodeDescription, bound_domain
from closeranks.comms.topology.topology import Topology
from closeranks.comms.topology.topology_json import decode_node, encode_node
from closeranks.errors import Error, TopologyError

if TYPE_CHECKING:
    from mpi4py import MPI


def assemble(findings: Findings) -> Topology:
    """Make the topology from the reports of all ranks.

    Parameters
    ----------
    findings : Findings
        Reports of all ranks; the same on every rank.

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
    """Return the links known from network cards, up to the site.

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
    """Compare shared memory with the host names.

    If ranks share memory under different host names, they are accepted if their
    kernel is the same (containers on one machine).  If ranks of one host name do
    not share memory, they are accepted if their kernels differ (machines of the
    same name).

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Records of all ranks.

    Raises
    ------
    TopologyError
        If neither explains the difference; the text has both views.
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


_LONGEST_SITE = 64


def discover(comm: MPI.Intracomm | None = None) -> Topology:
    """Find out what the job runs on.

    **Collective**: called by every rank of `comm`; blocks until all arrive.
    Levels, outermost first: "site" (environment ``CLOSERANKS_SITE``), SLURM's
    switches or blocks, "node" (ranks that share memory, checked against the
    host names), "package", "numa" and "l3" where every rank is bound inside
    one, "rank".  Levels that say nothing new are left out.

    Parameters
    ----------
    comm : Intracomm, default MPI.COMM_WORLD
        The ranks of the topology.

    Returns
    -------
    Topology
        Equal on every rank.  Links are defaults (see `default_links`), but
        for the speed of the network cards where the system tells it.

    Raises
    ------
    UsageError
        If ``comm`` is no communicator (local).
    TopologyError
        On every rank, if memory and the host names disagree about the nodes or a
        node's environment cannot be understood.
    """
    from mpi4py import MPI

    forked_child.refuse_in_child("discover")
    comm = MPI.COMM_WORLD if comm is None else comm
    argument.instance("discover", "comm", comm, MPI.Intracomm, "give a communicator, or none")
    node_comm = all_or_none(comm, lambda: split_by_node(comm))
    try:
        leader, packed, error = node_comm.bcast(_lead(node_comm.rank, comm.rank), root=0)
    except Exception:
        ulfm.revoke(node_comm)
        deferred_free.defer(node_comm)
        raise
    node_comm.Free()
    report = _report(comm.rank, leader, packed, error)
    records = np.zeros(comm.size, dtype=RECORD)
    each = np.full(comm.size, RECORD.itemsize)
    records.view(np.uint8)[:] = _of_all(comm, report.record.view(np.uint8), each)
    counts = lengths(records)
    mine = (report.text + report.hardware)[: int(counts[comm.rank])]
    payload = _of_all(comm, np.frombuffer(mine, np.uint8), counts)
    return assemble(decode(records, payload.tobytes()))


def _of_all(comm: MPI.Intracomm, own: Bytes, counts: NDArray[np.int64]) -> Bytes:
    """Give all ranks the bytes of all, also if some die.  Collective."""
    from mpi4py import MPI

    found = np.empty(int(counts.sum()), np.uint8)
    if ulfm.is_on() and found.size > ulfm.BRIEF_BYTES:

        def move(taker: int, sent: Bytes, giver: int, room: Bytes) -> None:
            comm.Sendrecv([sent, MPI.BYTE], taker, 0, [room, MPI.BYTE], giver, 0)

        return allgather_bytes(own, counts, comm.rank, move)
    comm.Allgatherv([own, MPI.BYTE], [found, counts, MPI.BYTE])
    return found


def _lead(local_rank: int, rank: int) -> tuple[int, bytes, str] | None:
    """Describe the node on its first rank; a failure is told, not raised."""
    if local_rank:
        return None
    try:
        return rank, encode_node(describe_here()), ""
    except Exception as problem:  # raised here alone, the other ranks would wait for ever
        error = f"its hardware could not be read ({type(problem).__name__}: {problem})"
        return rank, encode_node(NodeDescription("")), error


def _report(rank: int, leader: int, packed: bytes, error: str) -> RankReport:
    node = decode_node(packed)
    host = platform.node()
    affinity = os.sched_getaffinity(0)
    seen = Sighting(
        host=host,
        boot_id=boot_id(Path("/")),
        leader=leader,
        package=bound_domain(affinity, node.packages),
        numa=bound_domain(affinity, node.numa),
        l3=bound_domain(affinity, node.l3),
        nic=_named_nic(os.environ, node),
    )
    text = surroundings(os.environ, host)
    return encode(seen, rank, {**text, "error": error or text["error"]}, node)


def _named_nic(environ: Mapping[str, str], node: NodeDescription) -> int:
    """Return the card that the launcher bound this rank to, -1 if unknown."""
    name = environ.get("CLOSERANKS_NIC", "")
    return next((i for i, nic in enumerate(node.nics) if nic.name == name), -1)


def surroundings(environ: Mapping[str, str], host: str) -> dict[str, Any]:
    """Read the levels above a node from its environment.

    Parameters
    ----------
    environ : mapping of str to str
        A task's environment.
    host : str
        The node's name.

    Returns
    -------
    dict
        "site", "levels" and "labels" of SLURM's address, and "error": text about
        an unreadable environment, else "".
    """
    site = environ.get("CLOSERANKS_SITE", "")
    error, address = "", slurm_environment.Address()
    try:
        address = slurm_environment.address(environ, host)
    except Error as problem:
        error = str(problem)
    if len(site) > _LONGEST_SITE:
        error = f"CLOSERANKS_SITE has {len(site)} characters, at most {_LONGEST_SITE}"
    return {
        "site": site[:_LONGEST_SITE],
        "levels": address.levels,
        "labels": address.labels,
        "error": error,
    }
