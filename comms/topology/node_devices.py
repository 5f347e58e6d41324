"""The GPUs and network cards of a topology's nodes, and who is near them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from closeranks.errors import TopologyError

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or network card of a node.

    Parameters
    ----------
    kind : str
        "gpu" or "nic".
    name : str
        What the system calls it: "eth0", "mlx5_0", "GPU 3".
    numa : int, default -1
        NUMA domain it hangs on, -1 is unknown.
    pci : str, default ""
        PCI address, "" is unknown.
    bytes_per_s : float or None, default None
        Speed of the card in one direction, bytes/s; None is unknown.
    near : tuple of str, default ()
        Names of the devices of the other kind that are nearest by PCI path.
    path : str, default ""
        How near those are: "PIX", "PXB", "PHB", "NODE", "SYS", "" unknown.
    """

    kind: str
    name: str
    numa: int = UNKNOWN
    pci: str = ""
    bytes_per_s: float | None = None
    near: tuple[str, ...] = ()
    path: str = ""

    def __post_init__(self) -> None:
        """Refuse a kind that no reader knows."""
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
            What the topology has.

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
            Those of its NUMA domain; all of the node where the rank is not
            bound or none has its domain.
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
            With tables nobody uses any more dropped.
        """
        kept = [self.of_node[node] for node in nodes] if self.of_node else []
        used = sorted({table for table in kept if table != UNKNOWN})
        number = {table: i for i, table in enumerate(used)} | {UNKNOWN: UNKNOWN}
        numa = tuple(self.numa_of_rank[rank] for rank in ranks) if self.numa_of_rank else ()
        tables = tuple(self.tables[table] for table in used)
        return Devices(tables, tuple(number[table] for table in kept), numa)
