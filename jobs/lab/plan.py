"""The parts of a lab: nodes, networks, rates; pure data and addresses.

All NICs of all nodes stand in one subnet, 10.77.0.0/16: NIC k of node i is
10.77.k.(i + 1), the head (where the launcher runs) is 10.77.0.254.  Each site
is a bridge; two sites are joined by one wire, more by a star.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from closeranks.errors import UsageError

SUBNET = "10.77.0.0/16"
LAUNCHER_SUBNET = "10.77.0.0/24"
HEAD = "10.77.0.254"
CONTROL_PORT = 7077
BURST_BYTES = 128 * 1024
# Share of a wire's bits that carry TCP payload: 1448 of 1514 bytes a frame.
PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class LabPlan:
    """An emulated cluster.

    Parameters
    ----------
    slots : tuple of int
        Ranks of each node.
    order : str
        ``"block"`` or ``"round-robin"``.
    rate : float or None
        Speed of every NIC and direction, bytes/s; None for no limit.
    nics : int
        NICs of each node.
    sites : int
        Number of sites; nodes are dealt to them in contiguous runs.
    site_rate : float or None
        Speed of the wire between sites and direction, bytes/s.
    """

    slots: tuple[int, ...]
    order: str = "block"
    rate: float | None = None
    nics: int = 1
    sites: int = 1
    site_rate: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.slots) <= 250:
            raise UsageError("lab", f"{len(self.slots)} nodes", "ask for 1 to 250")
        if min(self.slots) < 1:
            raise UsageError("lab", f"a node of {min(self.slots)} ranks", "give each at least 1")
        if not 1 <= self.nics <= 16:
            raise UsageError("lab", f"--nics {self.nics}", "ask for 1 to 16")
        if not 1 <= self.sites <= len(self.slots):
            raise UsageError(
                "lab",
                f"--sites {self.sites} of {len(self.slots)} nodes",
                "one node a site at least",
            )
        if self.site_rate is not None and self.sites == 1:
            raise UsageError("lab", "--site-rate without sites", "add --sites 2")

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.slots)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return sum(self.slots)

    def name(self, node: int) -> str:
        """Give a node's host name.

        Parameters
        ----------
        node : int
            Its number, from 0.

        Returns
        -------
        str
            For example ``node0``.
        """
        return f"node{node}"

    def address(self, node: int, nic: int = 0) -> str:
        """Give the address of a NIC.

        Parameters
        ----------
        node, nic : int
            Their numbers, from 0.

        Returns
        -------
        str
            An IPv4 address.
        """
        return f"10.77.{nic}.{node + 1}"

    def site(self, node: int) -> int:
        """Tell a node's site.

        Parameters
        ----------
        node : int
            Its number.

        Returns
        -------
        int
            The site's number, from 0.
        """
        return node * self.sites // self.nodes

    def members(self, site: int) -> list[int]:
        """List the nodes of a site.

        Parameters
        ----------
        site : int
            Its number.

        Returns
        -------
        list of int
            Node numbers, ascending.
        """
        return [node for node in range(self.nodes) if self.site(node) == site]

    def to_json(self) -> str:
        """Describe the lab for the programs inside (``CLOSERANKS_LAB``).

        Returns
        -------
        str
            One line of JSON; rates in bytes/s as on the wire, headers
            included.
        """
        return json.dumps(
            {
                "nodes": self.nodes,
                "slots": list(self.slots),
                "order": self.order,
                "rate_bytes_per_s": self.rate,
                "burst_bytes": BURST_BYTES if self.rate or self.site_rate else None,
                "payload_share": round(PAYLOAD, 4),
                "nics": self.nics,
                "sites": self.sites,
                "site_rate_bytes_per_s": self.site_rate,
                "control": f"{HEAD}:{CONTROL_PORT}",
            }
        )


_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}


def parse_rate(text: str) -> float:
    """Read a rate as ``tc`` writes it.

    Parameters
    ----------
    text : str
        For example ``200mbit`` or ``1.5gbit``.

    Returns
    -------
    float
        Bytes/s.

    Raises
    ------
    UsageError
        If it is no rate, or below 1 Mbit/s or above 100 Gbit/s.
    """
    number = text.lower().rstrip("kmgtbi")
    unit = text.lower()[len(number) :]
    try:
        rate = float(number) * _UNITS[unit] / 8
    except (ValueError, KeyError):
        raise UsageError("lab", f"rate {text}", "write it like 200mbit or 1gbit") from None
    if not 125e3 <= rate <= 12.5e9:
        raise UsageError("lab", f"rate {text}", "choose between 1mbit and 100gbit")
    return rate


def parse_slots(nodes: int, per_node: str) -> tuple[int, ...]:
    """Read the ranks of each node.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    per_node : str
        One number for all nodes, or one for each: ``2`` or ``3,2,2``.

    Returns
    -------
    tuple of int
        Ranks of each node.

    Raises
    ------
    UsageError
        If it is no list of numbers, or of another length than `nodes`.
    """
    try:
        slots = tuple(int(part) for part in per_node.split(","))
    except ValueError:
        raise UsageError("lab", f"--per-node {per_node}", "write 2 or 3,2,2") from None
    if len(slots) == 1:
        return slots * nodes
    if nodes not in (0, len(slots)):
        raise UsageError(
            "lab", f"--per-node names {len(slots)} nodes, --nodes says {nodes}", "make them agree"
        )
    return slots
