"""A job: ranks and their places; launchers turn it into a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Host(NamedTuple):
    """A node and how many ranks it takes."""

    name: str
    slots: int


class Command(NamedTuple):
    """A command line, and additions to the environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class NodeReach:
    """How a launcher reaches nodes that only it can see (the lab's).

    Parameters
    ----------
    agent : str
        A program called like ssh: ``agent HOST COMMAND``.
    hostfile : str
        Where the launcher's list of hosts may be written.
    head : str
        Address at which the nodes find the launcher.
    launcher_network, network : str
        Subnets for the launcher's own talk and for the ranks' messages.
    prefix : tuple of str
        Words put before the program on every rank.
    """

    agent: str
    hostfile: str
    head: str
    launcher_network: str
    network: str
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A number of ranks on a number of nodes.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    hosts : tuple of Host, optional
        The nodes by name; empty means this machine, or the nodes of the
        allocation.
    nodes : int, optional
        How many nodes of the allocation to use.
    order : str, optional
        ``"block"`` fills node after node, ``"round-robin"`` deals ranks out.
    crowded : bool, optional
        True if a node has more ranks than cores: ranks yield when idle.
    paired : bool, optional
        True if a node has more ranks than cores without their second threads.
    overcommitted : bool, optional
        True if a node has more ranks than SLURM gave it CPUs.
    root : bool, optional
        True if started by the superuser, which Open MPI refuses by default.
    fabric : bool, optional
        True if this node has InfiniBand (or RoCE) devices.
    reach : NodeReach, optional
        How to reach the hosts if not through ssh.
    exported : sequence of str, optional
        Variables of this process that ranks on other nodes need.
    faults : bool, optional
        Whether the job goes on when ranks die.
    here : bool, optional
        True if all ranks are on this machine, children of the launcher itself.
    """

    ranks: int
    hosts: tuple[Host, ...] = ()
    nodes: int | None = None
    order: str = "block"
    crowded: bool = False
    paired: bool = False
    overcommitted: bool = False
    root: bool = False
    fabric: bool = False
    reach: NodeReach | None = None
    exported: Sequence[str] = field(default=())
    faults: bool = False
    here: bool = False

    def seats(self) -> list[str]:
        """List the host of every rank.

        Returns
        -------
        list of str
            Host names, rank by rank; empty if the hosts are not named.
        """
        if self.order == "block":
            return [host.name for host in self.hosts for _ in range(host.slots)][: self.ranks]
        rounds = max((host.slots for host in self.hosts), default=0)
        dealt = [host.name for turn in range(rounds) for host in self.hosts if turn < host.slots]
        return dealt[: self.ranks]
