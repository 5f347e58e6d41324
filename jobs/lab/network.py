"""The wires of a lab: bridges, veth pairs and token buckets.

The commands are pure text for ``ip -batch`` and ``tc -batch``; `build`
executes them, each in the network namespace it belongs to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from closeranks.errors import Error, Unavailable
from closeranks.jobs.lab.node import Node
from closeranks.jobs.lab.plan import BURST_BYTES, HEAD, LabPlan
from closeranks.jobs.launch import linux_namespaces

_QUEUE_BYTES = 4 * 1024 * 1024


def bucket(device: str, rate: float) -> str:
    """Limit what a device sends.

    The queue is deep enough that TCP loses no frames when several nodes send
    to one.

    Parameters
    ----------
    device : str
        The interface.
    rate : float
        Bytes/s, headers included.

    Returns
    -------
    str
        A line for ``tc -batch``.
    """
    limit = BURST_BYTES + max(_QUEUE_BYTES, int(rate / 10))
    return (
        f"qdisc add dev {device} root tbf rate {int(rate * 8)}bit burst {BURST_BYTES} limit {limit}"
    )


def backbone(plan: LabPlan) -> list[str]:
    """Describe the sites' bridges and the wires between them.

    Parameters
    ----------
    plan : LabPlan
        The lab.

    Returns
    -------
    list of str
        Lines for ``ip -batch`` in the lab's own network.
    """
    lines = ["link set lo up"]
    lines += [f"link add site{site} type bridge" for site in range(plan.sites)]
    if plan.sites == 2:
        lines += _wire("trunk0", "site0", "trunk1", "site1")
    if plan.sites > 2:
        lines.append("link add core type bridge")
        for site in range(plan.sites):
            lines += _wire(f"trunk{site}", f"site{site}", f"core{site}", "core")
    center = "core" if plan.sites > 2 else "site0"
    lines.append(f"addr add {HEAD}/16 dev {center}")
    bridges = [f"site{site}" for site in range(plan.sites)] + ["core"] * (plan.sites > 2)
    return lines + [f"link set {bridge} up" for bridge in bridges]


def trunks(plan: LabPlan) -> list[str]:
    """Name the ends of the wires between sites.

    Parameters
    ----------
    plan : LabPlan
        The lab.

    Returns
    -------
    list of str
        Interfaces in the lab's own network.
    """
    if plan.sites == 1:
        return []
    names = [f"trunk{site}" for site in range(plan.sites)]
    return names if plan.sites == 2 else names + [f"core{site}" for site in range(plan.sites)]


def _wire(left: str, left_bridge: str, right: str, right_bridge: str) -> list[str]:
    """Join two bridges."""
    return [
        f"link add {left} type veth peer name {right}",
        f"link set {left} master {left_bridge} up",
        f"link set {right} master {right_bridge} up",
    ]


def cables(plan: LabPlan, node: Node) -> list[str]:
    """Describe the veth pairs between a node and the bridge of its site.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    node : Node
        The node.

    Returns
    -------
    list of str
        Lines for ``ip -batch`` in the lab's own network.
    """
    lines = []
    for nic in range(plan.nics):
        near = port(node.number, nic)
        lines.append(f"link add {near} type veth peer name eth{nic} netns {node.pid}")
        lines.append(f"link set {near} master site{plan.site(node.number)} up")
    return lines


def port(node: int, nic: int) -> str:
    """Name the bridge's end of a cable.

    Parameters
    ----------
    node, nic : int
        Their numbers.

    Returns
    -------
    str
        An interface name.
    """
    return f"port{node}.{nic}"


def addresses(plan: LabPlan, node: int) -> list[str]:
    """Describe a node's interfaces and routes.

    With several NICs in one subnet, what leaves from an address must leave
    through its own NIC: one routing table and rule for each.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    node : int
        The node's number.

    Returns
    -------
    list of str
        Lines for ``ip -batch`` in the node's network.
    """
    lines = ["link set lo up"]
    for nic in range(plan.nics):
        address = plan.address(node, nic)
        lines += [f"addr add {address}/16 dev eth{nic}", f"link set eth{nic} up"]
        if plan.nics > 1:
            table = 100 + nic
            lines.append(f"route add 10.77.0.0/16 dev eth{nic} src {address} table {table}")
            lines.append(f"rule add from {address} table {table}")
    return lines


def build(plan: LabPlan, nodes: Sequence[Node]) -> None:
    """Make all networks of a lab.

    Called in the lab's own network by its only thread.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    nodes : sequence of Node
        Its nodes.

    Raises
    ------
    Unavailable
        If ``ip`` or ``tc`` is missing.
    Error
        If the kernel refuses a command.
    """
    _execute("ip", backbone(plan) + [line for node in nodes for line in cables(plan, node)])
    shaped = [bucket(end, plan.site_rate) for end in trunks(plan) if plan.site_rate]
    if plan.rate:
        ports = [port(node.number, nic) for node in nodes for nic in range(plan.nics)]
        shaped += [bucket(end, plan.rate) for end in ports]
    _execute("tc", shaped)
    for node in nodes:
        with linux_namespaces.network_of(node.pid):
            _build_node(plan, node.number)


def _build_node(plan: LabPlan, node: int) -> None:
    """Make the network inside one node; the caller has entered it."""
    _settle_congestion()
    if plan.nics > 1:
        _answer_for_own_address()
    _execute("ip", addresses(plan, node))
    if plan.rate:
        _execute("tc", [bucket(f"eth{nic}", plan.rate) for nic in range(plan.nics)])


def _settle_congestion() -> None:
    """Let TCP fill its windows alike on every machine.

    BBR takes the round trip of an idle token bucket, microseconds, for that
    of a busy one and then holds back for tenths of a second. Reno is in every
    kernel and open to every user, and without losses all windows are one.
    """
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")


def _answer_for_own_address() -> None:
    """Let a NIC answer ARP for its own address only."""
    # /proc/sys/net shows the network of the thread that looks.
    settings = Path("/proc/sys/net/ipv4/conf/all")
    for name, value in (("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "0")):
        (settings / name).write_text(value)


def _execute(tool: str, lines: Iterable[str]) -> None:
    """Feed lines to ``ip`` or ``tc``."""
    text = "".join(f"{line}\n" for line in lines)
    if not text:
        return
    path = shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise Unavailable(tool, "install iproute2")
    done = subprocess.run(
        [path, "-batch", "-"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Error(
            "lab", f"{tool}: {done.stderr.strip()}", "the kernel needs bridge, veth, sch_tbf"
        )
