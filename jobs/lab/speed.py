"""The lab's self-check: every wire carries the rate that was asked for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from closeranks.errors import Error
from closeranks.jobs.lab.node import Node
from closeranks.jobs.lab.plan import BURST_BYTES, PAYLOAD, LabPlan
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
    wire, so each flow goes on until one stretch is within the tolerance, at
    most three seconds.

    Parameters
    ----------
    plan : LabPlan
        The lab.
    nodes : sequence of Node
        Its nodes.
    flows : sequence of Flow
        What to measure.
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
