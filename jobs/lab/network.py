"""The network of a lab: bridges, veth pairs and token buckets.

The commands are pure text for ``ip -batch`` and ``tc -batch``; `build`
executes them, each in the network namespace it belongs to.  `check` measures
whether every wire carries the rate that was asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from closeranks.errors import Error, Unavailable
from closeranks.jobs.lab.node import Node
from closeranks.jobs.lab.plan import BURST_BYTES, HEAD, PAYLOAD, LabPlan
from closeranks.jobs.launch import linux_namespaces

_TOLERANCE = 0.05
_STRETCH_S = 0.2
_PATIENCE_S = 3.0
_LIMIT_S = 10.0


@dataclass(frozen=True)
class Flow:
    """One measured stream: from a NIC of a node to the same NIC of another."""

    source: int
    target: int
    nic: int


def flows_within_sites(plan: LabPlan) -> list[Flow]:
    """Pair the nodes of each site in a ring, every NIC for itself.

    Parameters
    ----------
    plan : LabPlan
        The lab.

    Returns
    -------
    list of Flow
        Flows that share no NIC in the same direction.
    """
    flows = []
    for site in range(plan.sites):
        ring = plan.members(site)
        for place, node in enumerate(ring):
            if len(ring) > 1:
                after = ring[(place + 1) % len(ring)]
                flows += [Flow(node, after, nic) for nic in range(plan.nics)]
    return flows


def flows_between_sites(plan: LabPlan) -> list[Flow]:
    """Pair the first nodes of neighbouring sites in a ring.

    Parameters
    ----------
    plan : LabPlan
        The lab.

    Returns
    -------
    list of Flow
        One flow into and one out of each site; empty with one site.
    """
    if plan.sites == 1:
        return []
    first = [plan.members(site)[0] for site in range(plan.sites)]
    return [Flow(node, first[(i + 1) % len(first)], 0) for i, node in enumerate(first)]


def measure(
    plan: LabPlan, nodes: Sequence[Node], flows: Sequence[Flow], expected: float
) -> list[float]:
    """Measure flows, all at once.

    A stretch in which a busy machine kept us waiting says nothing about the
    wire.  So each flow goes on until one stretch is within the tolerance, at
    most three seconds.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    nodes : sequence of Node
        Its nodes.
    flows : sequence of Flow
        Flows to measure.
    expected : float
        TCP payload in bytes/s that each should carry.

    Returns
    -------
    list of float
        TCP payload of each flow in bytes/s, without the first bytes that
        token buckets let through at once; the stretch that is nearest.
    """
    pairs = [_connect(plan, nodes, flow) for flow in flows]
    rates = [0.0] * len(flows)

    def receive(index: int) -> None:
        rates[index] = _receive(pairs[index][1], expected)

    receivers = [threading.Thread(target=receive, args=(i,)) for i in range(len(pairs))]
    senders = [threading.Thread(target=_send, args=(sender,)) for sender, _ in pairs]
    for thread in (*receivers, *senders):
        thread.start()
    for thread in (*receivers, *senders):
        thread.join()
    return rates


def _connect(
    plan: LabPlan, nodes: Sequence[Node], flow: Flow
) -> tuple[socket.socket, socket.socket]:
    """Open a TCP connection between two nodes; both ends are ours."""
    addresses = [plan.address(node, flow.nic) for node in (flow.source, flow.target)]
    with linux_namespaces.network_of(nodes[flow.target].pid):
        listener = socket.create_server((addresses[1], 0))
    with linux_namespaces.network_of(nodes[flow.source].pid):
        sender = socket.socket()
    with listener:
        sender.settimeout(_LIMIT_S)
        listener.settimeout(_LIMIT_S)
        sender.bind((addresses[0], 0))
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
    receiver.settimeout(_LIMIT_S)
    return sender, receiver


def _send(sender: socket.socket) -> None:
    """Keep a connection full until the other end closes it."""
    block = bytes(64 * 1024)
    with sender, contextlib.suppress(OSError):
        while True:
            sender.sendall(block)


def _receive(receiver: socket.socket, expected: float) -> float:
    """Receive stretch after stretch, the first after the buckets are empty."""
    buffer = bytearray(256 * 1024)
    nearest, skipped = 0.0, 0
    with receiver, contextlib.suppress(TimeoutError):
        while skipped < 4 * BURST_BYTES:
            skipped += receiver.recv_into(buffer)
        end = time.perf_counter() + _PATIENCE_S
        while abs(nearest / expected - 1) > _TOLERANCE and time.perf_counter() < end:
            nearest = min(nearest, _stretch(receiver, buffer), key=lambda r: abs(r - expected))
    return nearest


def _stretch(receiver: socket.socket, buffer: bytearray) -> float:
    """Measure for a moment, in bytes/s."""
    counted, start = 0, time.perf_counter()
    now = start
    while now - start < _STRETCH_S:
        counted += receiver.recv_into(buffer)
        now = time.perf_counter()
    return counted / (now - start)


def check(plan: LabPlan, nodes: Sequence[Node]) -> list[str]:
    """Measure every limited wire and compare it with what was asked for.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    nodes : sequence of Node
        Its nodes.

    Returns
    -------
    list of str
        One line for each kind of wire.

    Raises
    ------
    Error
        If a wire is off by more than 5 %.
    """
    lines = []
    if plan.rate and (flows := flows_within_sites(plan)):
        lines.append(_judge(plan, nodes, flows, plan.rate, "NICs"))
    if plan.site_rate:
        slowest = min(plan.site_rate, plan.rate or plan.site_rate)
        lines.append(_judge(plan, nodes, flows_between_sites(plan), slowest, "between sites"))
    return lines


def _judge(
    plan: LabPlan, nodes: Sequence[Node], flows: Sequence[Flow], rate: float, what: str
) -> str:
    """Measure flows and compare them with what was asked for."""
    expected = PAYLOAD * rate
    rates = measure(plan, nodes, flows, expected)
    text = (
        f"{what}: {min(rates) / 1e6:.2f} to {max(rates) / 1e6:.2f} MB/s payload over "
        f"{len(flows)} connections, expected {expected / 1e6:.2f}"
    )
    off = max(abs(measured / expected - 1) for measured in rates)
    if off > _TOLERANCE:
        raise Error(
            "lab self-check",
            f"{text}: off by {off:.0%}, limit {_TOLERANCE:.0%}",
            "ask for a lower --rate, free the machine, or skip it with --no-check",
        )
    return text


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
