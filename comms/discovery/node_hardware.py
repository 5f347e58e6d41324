"""Describe this node: its processors, caches, network cards and GPUs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from closeranks.comms.discovery import hwloc, nvml, sysfs
from closeranks.comms.shm.node_identity import boot_id
from closeranks.comms.topology.node_description import Fact, Gpu, Nic, NodeDescription
from closeranks.errors import TopologyError


@cache
def describe_here() -> NodeDescription:
    """Describe the node this process runs on.

    Local; read once, for it takes lstopo some 20 ms, and a recovery waits for it.

    Returns
    -------
    NodeDescription
        Processors from hwloc where lstopo is installed, else from sysfs;
        cards from sysfs; GPUs from NVML.  What cannot be read is unknown.
    """
    library = nvml.load()
    try:
        return describe(Path("/"), hwloc.run_lstopo(), library)
    finally:
        if library is not None:
            library.nvmlShutdown()


def describe(root: Path, xml: str = "", library: Any | None = None) -> NodeDescription:
    """Describe a node from what was read of it.  Local.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree of /sys and /proc.
    xml : str, default ""
        Of lstopo; "" or unreadable XML leaves all to sysfs.
    library : object, optional
        NVML or a recording of it, see `nvml.read`.

    Returns
    -------
    NodeDescription
        Each fact with its source.
    """
    try:
        hardware = hwloc.parse(xml) if xml else hwloc.Hardware()
    except TopologyError:
        hardware = hwloc.Hardware()
    known = hardware.packages.value is not None
    numa = hardware.numa if known else sysfs.numa(root)
    distances = sysfs.distances(root)
    if len(distances.value or ()) != len(numa.value or ()):
        distances = Fact()
    return NodeDescription(
        host=platform.node(),
        boot_id=boot_id(root),
        packages=hardware.packages if known else sysfs.packages(root),
        numa=numa,
        l3=hardware.l3 if known else sysfs.l3(root),
        distances=distances,
        nics=_filled(sysfs.nics(root), hardware.nics),
        gpus=tuple(_located(gpu, root) for gpu in nvml.read(library)) if library else (),
    )


def _filled(nics: Sequence[Nic], others: Sequence[Nic]) -> tuple[Nic, ...]:
    """Complete sysfs's cards by what hwloc knows of them."""
    if not nics:
        return tuple(others)
    by_name = {nic.name: nic for nic in others}
    made = []
    for nic in nics:
        other = by_name.get(nic.name, nic)
        numa = other.numa if nic.numa.value is None else nic.numa
        pci = other.pci if nic.pci.value is None else nic.pci
        made.append(replace(nic, numa=numa, pci=pci))
    return tuple(made)


def _located(gpu: Gpu, root: Path) -> Gpu:
    """Add the NUMA domain and the PCI way that sysfs knows of a GPU."""
    if not gpu.pci.value:
        return gpu
    device = root / "sys/bus/pci/devices" / gpu.pci.value[-1]
    way = sysfs.pci_path(root, device)
    return replace(
        gpu, numa=sysfs.device_numa(device), pci=way if way.value is not None else gpu.pci
    )
