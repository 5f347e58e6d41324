"""Hardware of this node: processors, usable cores, network cards, GPUs.

A machine's core count is an upper bound only: the affinity mask (`taskset`,
SLURM, MPI binding) and the cgroup's CPU quota (containers) reduce it.  All
code that decides between spinning and sleeping asks here.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from closeranks.comms.discovery import hwloc, nvml, sysfs
from closeranks.comms.shm.node_identity import boot_id
from closeranks.comms.topology.node_description import Fact, Gpu, Nic, NodeDescription
from closeranks.errors import TopologyError

if TYPE_CHECKING:
    from mpi4py import MPI


_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_OF_SELF = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Count the cores this process may keep busy at once.

    Returns
    -------
    int
        The size of the affinity mask, or the CPU quota of the tightest
        enclosing cgroup rounded down if that is less; at least 1.  Local.
    """
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return max(1, allowed if quota is None else min(allowed, math.floor(quota)))


def whole_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Count the cores behind this process's affinity mask, threads of one as one.

    Local.

    Parameters
    ----------
    root : Path
        Where Linux describes processors.

    Returns
    -------
    int
        At least 1; each processor counts where Linux does not tell.
    """
    cores = set[str]()
    for processor in os.sched_getaffinity(0):
        siblings = root / f"cpu{processor}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else f"{processor}")
    return max(1, len(cores))


def cores_of(node: MPI.Comm) -> int:
    """Count the cores that the ranks of a node may keep busy together.

    Launchers bind ranks to cores of their own: one rank's mask says little.

    Parameters
    ----------
    node : MPI.Comm
        Ranks of one node; collective over it.

    Returns
    -------
    int
        See `cores_within`.  The same on every rank.
    """
    return cores_within(limits_of(node))


#: What bounds the cores of a process: its affinity mask, and its cgroup's CPU quota.
CoreLimits: TypeAlias = tuple[int, float | None]


def limits_of(node: MPI.Comm) -> list[CoreLimits]:
    """Give the limits of each rank of a node.  Collective over it."""
    mask = sum(1 << core for core in os.sched_getaffinity(0))
    limits: list[CoreLimits] = node.allgather((mask, cgroup_quota()))
    return limits


def cores_within(limits: Iterable[CoreLimits]) -> int:
    """Count the cores that processes of one node may keep busy together.

    Local.

    Parameters
    ----------
    limits : iterable of CoreLimits
        Of each process.

    Returns
    -------
    int
        The cores in any of the masks, or the least CPU quota rounded down if that
        is less; at least 1.
    """
    together, quotas = 0, []
    for mask, quota in limits:
        together |= mask
        quotas += [] if quota is None else [math.floor(quota)]
    return max(1, min([together.bit_count(), *quotas]))


def cgroup_quota(root: Path | None = None, membership: Path | None = None) -> float | None:
    """Read the CPU quota of this process's cgroup and of all its parents.

    Parameters
    ----------
    root : Path, optional
        Where the cgroup file systems are mounted; ``/sys/fs/cgroup``.
    membership : Path, optional
        The file that names the cgroups; ``/proc/self/cgroup``.

    Returns
    -------
    float or None
        Cores, for example 1.5; None if nothing limits them.  Local.
    """
    root, membership = root or _CGROUP_ROOT, membership or _CGROUP_OF_SELF
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # cgroup v2: one tree for all controllers
            for base in (root, root / "unified"):
                quotas += _along(base, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for base in (root / controllers, root / "cpu"):
                quotas += _along(base, path, _quota_v1)
    return min(quotas, default=None)


def _along(base: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """Read the quota of a cgroup and of every one above it."""
    if not base.is_dir():
        return []
    folder = base / path.lstrip("/")
    if base not in (folder, *folder.parents):
        return []
    found = []
    while True:
        quota = read(folder)
        if quota is not None:
            found.append(quota)
        if folder == base:
            return found
        folder = folder.parent


def _quota_v2(folder: Path) -> float | None:
    """Read ``cpu.max``: two numbers, or ``max`` and a number."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    """Read ``cpu.cfs_quota_us`` over ``cpu.cfs_period_us``; -1 is no limit."""
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


@cache
def describe_here() -> NodeDescription:
    """Describe the node this process runs on.

    Local; read once, for it takes lstopo some 20 ms, and a recovery waits for it.

    Returns
    -------
    NodeDescription
        Processors from hwloc where lstopo is installed, else from sysfs;
        cards from sysfs; GPUs from NVML.  Facts that cannot be read are unknown.
    """
    library = nvml.start_nvml()
    try:
        return describe(Path("/"), hwloc.run_lstopo(), library)
    finally:
        if library is not None:
            library.nvmlShutdown()


def describe(root: Path, xml: str = "", library: Any | None = None) -> NodeDescription:
    """Describe a node from its readings.  Local.

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
        gpus=tuple(_located(gpu, root) for gpu in nvml.read_gpus(library)) if library else (),
    )


def _filled(nics: Sequence[Nic], others: Sequence[Nic]) -> tuple[Nic, ...]:
    """Complete sysfs's cards by facts of hwloc."""
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
