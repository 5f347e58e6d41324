"""The form in which a node's description travels: compact JSON."""

from __future__ import annotations

import json
from typing import Any

from closeranks.comms.topology.node_description import Domain, Fact, Gpu, Nic, NodeDescription
from closeranks.comms.topology.run_length import read_runs, write_runs

_MOST_CPUS = 65536


def pack(node: NodeDescription) -> bytes:
    """Write what makes nodes equal: no host name, no boot id, no UUID.

    Parameters
    ----------
    node : NodeDescription
        Any.

    Returns
    -------
    bytes
        Equal for equal hardware.
    """
    document = {
        "packages": _domains(node.packages),
        "numa": _domains(node.numa),
        "l3": _domains(node.l3),
        "distances": _fact(node.distances),
        "nics": [
            [n.name, _fact(n.bytes_per_s), _fact(n.numa), _fact(n.pci), _fact(n.usable), n.fabric]
            for n in node.nics
        ],
        "gpus": [
            [g.name, g.model, _fact(g.numa), _fact(g.pci), _fact(g.nvlink)] for g in node.gpus
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def unpack(data: bytes) -> NodeDescription:
    """Read what `pack` wrote on another rank of this job.

    Parameters
    ----------
    data : bytes
        From `pack`.

    Returns
    -------
    NodeDescription
        Without host name, boot id and UUIDs.
    """
    document = json.loads(data)
    distances = _read(document["distances"])
    return NodeDescription(
        host="",
        packages=_read_domains(document["packages"]),
        numa=_read_domains(document["numa"]),
        l3=_read_domains(document["l3"]),
        distances=Fact(_tuples(distances.value), distances.source),
        nics=tuple(_read_nic(entry) for entry in document["nics"]),
        gpus=tuple(_read_gpu(entry) for entry in document["gpus"]),
    )


def _fact(fact: Fact[Any]) -> list[Any]:
    return [fact.value, fact.source]


def _read(entry: list[Any]) -> Fact[Any]:
    return Fact(entry[0], entry[1])


def _domains(fact: Fact[tuple[Domain, ...]]) -> list[Any]:
    if fact.value is None:
        return [None, fact.source]
    return [[[d.number, write_runs(d.cpus)] for d in fact.value], fact.source]


def _read_domains(entry: list[Any]) -> Fact[tuple[Domain, ...]]:
    if entry[0] is None:
        return Fact(None, entry[1])
    made = (
        Domain(number, tuple(read_runs(cpus, _MOST_CPUS, "cpus", fewer=True).tolist()))
        for number, cpus in entry[0]
    )
    return Fact(tuple(made), entry[1])


def _tuples(value: Any) -> Any:
    """Turn lists of lists into tuples of tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _read_nic(entry: list[Any]) -> Nic:
    name, rate, numa, pci, usable, fabric = entry
    way = Fact(_tuples(pci[0]), pci[1])
    return Nic(name, _read(rate), _read(numa), way, _read(usable), fabric)


def _read_gpu(entry: list[Any]) -> Gpu:
    name, model, numa, pci, nvlink = entry
    way, peers = Fact(_tuples(pci[0]), pci[1]), Fact(_tuples(nvlink[0]), nvlink[1])
    return Gpu(name, model, "", _read(numa), way, peers)
