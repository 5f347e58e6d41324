"""Device tables of a topology, and what they say of the links between nodes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from closeranks.comms.discovery.rank_reports import Findings
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Nic, NodeDescription, nearest
from closeranks.comms.topology.node_devices import Device, Devices


def table(node: NodeDescription) -> tuple[Device, ...]:
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
        What all ranks said.

    Returns
    -------
    Devices
        Equal nodes share a table.
    """
    numbers: dict[tuple[Device, ...], int] = {}
    of_kind = [numbers.setdefault(table(d), len(numbers)) for d in findings.descriptions]
    numa = findings.records["numa"].tolist()
    return Devices(
        tuple(numbers),
        tuple(of_kind[kind] for kind in findings.kinds),
        tuple(numa) if max(numa) >= 0 else (),
    )


def node_link(findings: Findings, default: Link) -> Link:
    """Say what the network cards tell of the link between nodes.

    Parameters
    ----------
    findings : Findings
        What all ranks said.
    default : Link
        For what is unknown.

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
