"""Hardware of a node, each fact with its source; unknown is a value.

`Devices` keeps the GPUs and network cards of all nodes of a topology, and the
NUMA domain of each rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from closeranks.errors import TopologyError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and where it was read.

    Parameters
    ----------
    value : object or None
        The value; None is unknown.
    source : str, default "unknown"
        "sysfs", "hwloc", "nvml", "environment", ...
    """

    value: T | None = None
    source: str = "unknown"


@dataclass(frozen=True, slots=True)
class Domain:
    """A set of CPUs: a package, a NUMA domain, a shared cache.

    Parameters
    ----------
    number : int
        The system's number for it.
    cpus : tuple of int
        Its CPUs, ascending.
    """

    number: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card.

    Parameters
    ----------
    name : str
        "eth0", "mlx5_0".
    bytes_per_s : Fact of float
        Speed in one direction.
    numa : Fact of int
        NUMA domain it hangs on.
    pci : Fact of tuple of str
        Way from the root complex to the card, the card last.
    usable : Fact of bool
        Whether it is up and has an address (Ethernet) or an active port.
    fabric : str, default "ethernet"
        "ethernet" or "infiniband".
    """

    name: str
    bytes_per_s: Fact[float] = Fact()
    numa: Fact[int] = Fact()
    pci: Fact[tuple[str, ...]] = Fact()
    usable: Fact[bool] = Fact()
    fabric: str = "ethernet"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU.

    Parameters
    ----------
    name : str
        "GPU 0", unique in its node.
    model : str
        "NVIDIA H100 80GB HBM3".
    uuid : str
        Unique in the world; not compared between nodes.
    numa : Fact of int
        NUMA domain it hangs on.
    pci : Fact of tuple of str
        Way from the root complex to the GPU, the GPU last.
    nvlink : Fact of tuple of (str, float)
        Names of the GPUs it reaches by NVLink and the bandwidth in one
        direction, bytes/s; 0 is unknown.
    """

    name: str
    model: str = ""
    uuid: str = ""
    numa: Fact[int] = Fact()
    pci: Fact[tuple[str, ...]] = Fact()
    nvlink: Fact[tuple[tuple[str, float], ...]] = Fact()


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """Everything known of one node.

    Parameters
    ----------
    host : str
        Host name.
    boot_id : str
        The running kernel; equal in all containers of one machine.
    packages, numa, l3 : Fact of tuple of Domain
        Processor packages, NUMA domains, last-level caches.
    distances : Fact of tuple of tuple of int
        NUMA distances (10 is local), in the order of ``numa``.
    nics : tuple of Nic
        Network cards without the loopback.
    gpus : tuple of Gpu
        GPUs.
    """

    host: str
    boot_id: str = ""
    packages: Fact[tuple[Domain, ...]] = Fact()
    numa: Fact[tuple[Domain, ...]] = Fact()
    l3: Fact[tuple[Domain, ...]] = Fact()
    distances: Fact[tuple[tuple[int, ...], ...]] = Fact()
    nics: tuple[Nic, ...] = ()
    gpus: tuple[Gpu, ...] = ()


def bound_domain(affinity: Iterable[int], domains: Fact[tuple[Domain, ...]]) -> int:
    """Find the one domain a process is bound inside.

    Parameters
    ----------
    affinity : iterable of int
        CPUs the process may run on.
    domains : Fact of tuple of Domain
        Domains of one kind.

    Returns
    -------
    int
        Number of the domain, -1 if the process may leave it or nothing is
        known.
    """
    mask = frozenset(affinity)
    for domain in domains.value or ():
        if mask and mask <= frozenset(domain.cpus):
            return domain.number
    return -1


def pci_distance(a: Gpu | Nic, b: Gpu | Nic, numa_domains: int) -> str:
    """Classify the way between two devices of one node as nvidia-smi does.

    Parameters
    ----------
    a, b : Gpu or Nic
        Two different devices.
    numa_domains : int
        How many NUMA domains the node has.

    Returns
    -------
    str
        "PIX" (at most one PCIe bridge or switch), "PXB" (several), "PHB" (the
        host bridge), "NODE" (host bridges of one NUMA domain), "SYS" (across
        NUMA domains), "" if unknown.
    """
    if not a.pci.value or not b.pci.value:
        return ""
    left, right = a.pci.value, b.pci.value
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    if common == 0:
        same = a.numa.value is not None and a.numa.value == b.numa.value
        return "NODE" if same or numa_domains == 1 else "SYS"
    if common == 1:
        return "PHB"
    bridges = max(len(left), len(right)) - common - 1
    return "PIX" if bridges <= 1 else "PXB"


PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def nearest(device: Gpu | Nic, others: Iterable[Gpu | Nic], numa_domains: int) -> tuple[str, ...]:
    """Find the devices nearest to one by PCI path.

    Parameters
    ----------
    device : Gpu or Nic
        Where to start.
    others : iterable of Gpu or Nic
        Candidates.
    numa_domains : int
        How many NUMA domains the node has.

    Returns
    -------
    tuple of str
        The kind of path, then the names of all candidates at that path; empty
        if no path is known.
    """
    by_path: dict[str, list[str]] = {}
    for other in others:
        by_path.setdefault(pci_distance(device, other, numa_domains), []).append(other.name)
    best = next((path for path in PATHS if path in by_path), None)
    return () if best is None else (best, *by_path[best])


UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or network card of a node.

    Parameters
    ----------
    kind : str
        "gpu" or "nic".
    name : str
        Its name in the system: "eth0", "mlx5_0", "GPU 3".
    numa : int, default -1
        NUMA domain it hangs on, -1 is unknown.
    pci : str, default ""
        PCI address, "" is unknown.
    bytes_per_s : float or None, default None
        Speed of the card in one direction, bytes/s; None is unknown.
    near : tuple of str, default ()
        Names of the devices of the other kind that are nearest by PCI path.
    path : str, default ""
        Kind of path to them: "PIX", "PXB", "PHB", "NODE", "SYS", "" unknown.
    """

    kind: str
    name: str
    numa: int = UNKNOWN
    pci: str = ""
    bytes_per_s: float | None = None
    near: tuple[str, ...] = ()
    path: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown kind."""
        if self.kind not in ("gpu", "nic"):
            raise TopologyError("device", f"kind is {self.kind!r}", "give 'gpu' or 'nic'")


@dataclass(frozen=True, slots=True)
class Devices:
    """Device tables of nodes, equal nodes sharing one table.

    Parameters
    ----------
    tables : tuple of tuple of Device
        The different tables.
    of_node : tuple of int
        For each node its table, -1 where nothing is known; empty if nothing
        is known of any node.
    numa_of_rank : tuple of int
        For each rank the NUMA domain it is bound to, -1 where it is not bound
        or unknown; empty if unknown for all.
    """

    tables: tuple[tuple[Device, ...], ...] = ()
    of_node: tuple[int, ...] = ()
    numa_of_rank: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse references to tables that do not exist."""
        for table in self.of_node:
            if not UNKNOWN <= table < len(self.tables):
                problem = f"node refers to table {table} of {len(self.tables)}"
                raise TopologyError("devices", problem, "give -1 or the number of a table")

    def __bool__(self) -> bool:
        """Say whether anything is known."""
        return bool(self.tables)

    def check(self, nodes: int, ranks: int) -> None:
        """Refuse tables that do not fit a topology.

        Parameters
        ----------
        nodes, ranks : int
            Size of the topology.

        Raises
        ------
        TopologyError
            If a table is neither empty nor of that length.
        """
        for name, has, wants in (
            ("of_node", len(self.of_node), nodes),
            ("numa_of_rank", len(self.numa_of_rank), ranks),
        ):
            if has not in (0, wants):
                problem = f"{name} has {has} entries for {wants}"
                raise TopologyError("devices", problem, f"give {wants} entries or none")

    def on(self, node: int) -> tuple[Device, ...]:
        """Return the devices of a node, () if unknown.

        Parameters
        ----------
        node : int
            Node number of the topology's level "node".

        Returns
        -------
        tuple of Device
            In the order of the table.
        """
        table = self.of_node[node] if node < len(self.of_node) else UNKNOWN
        return () if table == UNKNOWN else self.tables[table]

    def near(self, rank: int, node: int, kind: str) -> tuple[Device, ...]:
        """Return the devices of one kind in a rank's NUMA domain.

        Parameters
        ----------
        rank : int
            A rank of the topology.
        node : int
            The node it runs on.
        kind : str
            "gpu" or "nic".

        Returns
        -------
        tuple of Device
            The devices of its NUMA domain; all of the node if the rank is not bound
            or no device has its domain.
        """
        mine = tuple(device for device in self.on(node) if device.kind == kind)
        numa = self.numa_of_rank[rank] if rank < len(self.numa_of_rank) else UNKNOWN
        close = tuple(device for device in mine if device.numa == numa != UNKNOWN)
        return close or mine

    def restrict(self, nodes: Sequence[int], ranks: Sequence[int]) -> Devices:
        """Keep some nodes and ranks, in the given order.

        Parameters
        ----------
        nodes : sequence of int
            Old numbers of the nodes kept.
        ranks : sequence of int
            Old numbers of the ranks kept.

        Returns
        -------
        Devices
            Without tables that are no longer used.
        """
        kept = [self.of_node[node] for node in nodes] if self.of_node else []
        used = sorted({table for table in kept if table != UNKNOWN})
        number = {table: i for i, table in enumerate(used)} | {UNKNOWN: UNKNOWN}
        numa = tuple(self.numa_of_rank[rank] for rank in ranks) if self.numa_of_rank else ()
        tables = tuple(self.tables[table] for table in used)
        return Devices(tables, tuple(number[table] for table in kept), numa)
