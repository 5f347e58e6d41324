"""Records that ranks exchange to agree on a topology.

Every rank contributes a record of fixed size.  The first rank of a node adds
its node's text (site, switch address).  The first node of each kind of
hardware adds its description, from which device tables and links between nodes
are made.  Pure: `closeranks.comms.discovery.discovery` communicates.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import (
    Device,
    Devices,
    Nic,
    NodeDescription,
    nearest,
)
from closeranks.comms.topology.topology_json import decode_node, encode_node


def device_table(node: NodeDescription) -> tuple[Device, ...]:
    """List a node's GPUs and usable network cards.

    Parameters
    ----------
    node : NodeDescription
        One node.

    Returns
    -------
    tuple of Device
        GPUs first, each with the nearest cards of the other kind.
    """
    nics = usable_nics(node)
    domains = len(node.numa.value or ())
    made = []
    for device, others in [(g, nics) for g in node.gpus] + [(n, node.gpus) for n in nics]:
        path, *near = nearest(device, others, domains) or ("",)
        made.append(
            Device(
                kind="nic" if isinstance(device, Nic) else "gpu",
                name=device.name,
                numa=-1 if device.numa.value is None else device.numa.value,
                pci=device.pci.value[-1] if device.pci.value else "",
                bytes_per_s=device.bytes_per_s.value if isinstance(device, Nic) else None,
                near=tuple(near),
                path=path,
            )
        )
    return tuple(made)


def usable_nics(node: NodeDescription) -> tuple[Nic, ...]:
    """Return the cards a job would use.

    Parameters
    ----------
    node : NodeDescription
        One node.

    Returns
    -------
    tuple of Nic
        InfiniBand where there is any, else Ethernet; of the fastest known
        speed only.
    """
    nics = [nic for nic in node.nics if nic.usable.value is not False]
    nics = [nic for nic in nics if nic.fabric == "infiniband"] or nics
    fastest = max((nic.bytes_per_s.value or 0.0 for nic in nics), default=0.0)
    return tuple(nic for nic in nics if (nic.bytes_per_s.value or 0.0) == fastest)


def devices(findings: Findings) -> Devices:
    """Make the device tables of all nodes.

    Parameters
    ----------
    findings : Findings
        Reports of all ranks.

    Returns
    -------
    Devices
        Equal nodes share a table.
    """
    numbers: dict[tuple[Device, ...], int] = {}
    of_kind = [numbers.setdefault(device_table(d), len(numbers)) for d in findings.descriptions]
    numa = findings.records["numa"].tolist()
    return Devices(
        tuple(numbers),
        tuple(of_kind[kind] for kind in findings.kinds),
        tuple(numa) if max(numa) >= 0 else (),
    )


def node_link(findings: Findings, default: Link) -> Link:
    """Derive the link between nodes from the network cards.

    Parameters
    ----------
    findings : Findings
        Reports of all ranks.
    default : Link
        Value of unknown fields.

    Returns
    -------
    Link
        Speed of the slowest node's cards; as many rails as ranks of a node
        are known to have cards of their own, in the node with the fewest.
    """
    nics = [usable_nics(node) for node in findings.descriptions]
    speeds = [cards[0].bytes_per_s.value if cards else None for cards in nics]
    rails = min(_rails(findings, i, nics[kind]) for i, kind in enumerate(findings.kinds))
    known = [speed for speed in speeds if speed is not None]
    if len(known) < len(speeds):
        return Link(default.latency_s, default.bytes_per_s, rails, default.source)
    return Link(default.latency_s, min(known), rails, "nic speed")


def _rails(findings: Findings, node: int, nics: tuple[Nic, ...]) -> int:
    """Count the cards that ranks of a node are bound to, 1 if unknown."""
    records = findings.records[findings.records["leader"] == findings.leaders[node]]
    named = records["nic"]
    if (named >= 0).all():
        return len(np.unique(named))
    ranks, cards = Counter(records["numa"].tolist()), Counter(nic.numa.value for nic in nics)
    if -1 in ranks or None in cards:
        return 1
    return max(1, sum(min(number, cards[numa]) for numa, number in ranks.items()))


RECORD = np.dtype(
    [
        ("version", "<u2"),
        ("host", "S40"),  # for messages; may be cut
        ("host_digest", "<u8"),
        ("boot_digest", "<u8"),  # 0 is unknown
        ("leader", "<i4"),  # lowest rank that shares memory with this one
        ("package", "<i2"),
        ("numa", "<i2"),
        ("l3", "<i2"),
        ("nic", "<i2"),  # index in the description, -1 unknown
        ("hardware", "<u8", (2,)),
        ("text_nbytes", "<u4"),
        ("hardware_nbytes", "<u4"),
    ]
)
VERSION = 1
Records = npt.NDArray[np.void]


class Sighting(NamedTuple):
    """Facts that one rank sees; see `RECORD`."""

    host: str
    boot_id: str
    leader: int
    package: int = -1
    numa: int = -1
    l3: int = -1
    nic: int = -1


class RankReport(NamedTuple):
    """One rank's contribution.

    Parameters
    ----------
    record : ndarray, shape (1,), dtype `RECORD`
        Of every rank.
    text : bytes
        Of a node's first rank, else empty.
    hardware : bytes
        Of a node's first rank; travels only from the first of its kind.
    """

    record: Records
    text: bytes
    hardware: bytes


def digest(data: bytes | str) -> tuple[int, int]:
    """Return a 128-bit digest as two numbers.

    Parameters
    ----------
    data : bytes or str
        Anything.

    Returns
    -------
    tuple of int
        Two numbers below 2**64; (0, 0) for nothing.
    """
    raw = data.encode() if isinstance(data, str) else data
    if not raw:
        return 0, 0
    whole = hashlib.blake2b(raw, digest_size=16).digest()
    return int.from_bytes(whole[:8], "little"), int.from_bytes(whole[8:], "little")


def encode(
    seen: Sighting, rank: int, text: Mapping[str, Any], description: NodeDescription
) -> RankReport:
    """Make a rank's contribution.

    Parameters
    ----------
    seen : Sighting
        Facts that the rank sees.
    rank : int
        Its number.
    text : mapping of str to object
        The node's site, address, pattern or error; plain JSON values.
    description : NodeDescription
        The node's hardware.

    Returns
    -------
    RankReport
        About 100 bytes, more from a node's first rank.
    """
    leads = rank == seen.leader
    words = json.dumps(text).encode() if leads else b""
    hardware = zlib.compress(encode_node(description)) if leads else b""
    record = np.zeros(1, dtype=RECORD)
    record["version"] = VERSION
    record["host"] = seen.host.encode(errors="replace")[:40]
    record["host_digest"] = digest(seen.host)[0]
    record["boot_digest"] = digest(seen.boot_id)[0]
    for name in ("leader", "package", "numa", "l3", "nic"):
        record[name] = getattr(seen, name)
    record["hardware"] = digest(hardware)
    record["text_nbytes"] = len(words)
    record["hardware_nbytes"] = len(hardware)
    return RankReport(record, words, hardware)


def first_of_kind(records: Records) -> npt.NDArray[np.bool_]:
    """Say which ranks send their node's description.

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Of all ranks.

    Returns
    -------
    ndarray, shape (size,), dtype bool
        The lowest rank of each kind of hardware.
    """
    has = np.flatnonzero(records["hardware_nbytes"])
    _, first = np.unique(records["hardware"][has], axis=0, return_index=True)
    mask = np.zeros(len(records), dtype=np.bool_)
    mask[has[first]] = True
    return mask


def lengths(records: Records) -> npt.NDArray[np.int64]:
    """Return how many bytes each rank sends in the second collective.

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Of all ranks.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        Text, and hardware where it is the first of its kind.
    """
    hardware = np.where(first_of_kind(records), records["hardware_nbytes"], 0)
    total: npt.NDArray[np.int64] = records["text_nbytes"].astype(np.int64) + hardware
    return total


class Findings(NamedTuple):
    """Reports of all ranks, decoded.

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Of all ranks.
    leaders : ndarray, shape (nodes,), dtype int64
        First rank of each node, ascending.
    texts : list of dict
        The text of each node.
    kinds : list of int
        For each node its kind of hardware.
    descriptions : list of NodeDescription
        One for each kind.
    """

    records: Records
    leaders: npt.NDArray[np.int64]
    texts: list[dict[str, Any]]
    kinds: list[int]
    descriptions: list[NodeDescription]


def decode(records: Records, payload: bytes) -> Findings:
    """Take the two collectives' results apart.

    Parameters
    ----------
    records : ndarray, shape (size,), dtype `RECORD`
        Of all ranks.
    payload : bytes
        Bytes of the second collective, in rank order.

    Returns
    -------
    Findings
        The same on every rank.
    """
    leaders = np.flatnonzero(records["leader"] == np.arange(len(records)))
    ends = np.cumsum(lengths(records))
    firsts = first_of_kind(records)
    number: dict[bytes, int] = {}
    texts: list[dict[str, Any]] = []
    descriptions: list[NodeDescription] = []
    for leader in leaders.tolist():
        end = int(ends[leader])
        middle = end - (int(records["hardware_nbytes"][leader]) if firsts[leader] else 0)
        start = middle - int(records["text_nbytes"][leader])
        texts.append(json.loads(payload[start:middle]))
        if firsts[leader]:
            number[records["hardware"][leader].tobytes()] = len(descriptions)
            descriptions.append(decode_node(zlib.decompress(payload[middle:end])))
    kinds = [number[records["hardware"][leader].tobytes()] for leader in leaders.tolist()]
    return Findings(records, leaders, texts, kinds, descriptions)
