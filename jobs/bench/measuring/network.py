"""The network between nodes: a lab's wire, and the counters of NICs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from mpi4py import MPI

PAYLOAD = 0.957
"""Share of the wire's bytes that carries TCP payload: 1448 of 1514 a frame."""


@dataclass(frozen=True)
class Wire:
    """The network of a lab.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    bytes_per_s : float
        Rate of a node, all its NICs together.
    burst_bytes : float
        Bytes that pass at once before the rate applies.
    """

    nodes: int
    bytes_per_s: float
    burst_bytes: float

    def percent(self, nbytes: int, seconds: float) -> float | None:
        """Compare an all-reduce with the least time its bytes need.

        Parameters
        ----------
        nbytes : int
            Size of the all-reduce.
        seconds : float
            Time it took.

        Returns
        -------
        float or None
            Per cent of ``(2 (N-1)/N S - burst) / (0.957 rate)``; None if the
            burst carries everything.
        """
        crossing = 2 * (self.nodes - 1) / self.nodes * nbytes - self.burst_bytes
        if crossing <= 0 or seconds <= 0:
            return None
        return 100 * crossing / (PAYLOAD * self.bytes_per_s) / seconds


def wire(environ: Mapping[str, str] | None = None) -> Wire | None:
    """Read the lab's description of itself.

    Parameters
    ----------
    environ : mapping, optional
        The environment; default ``os.environ``.

    Returns
    -------
    Wire or None
        None outside a lab, without a rate, and with several sites: their
        slowest wire is not a node's.
    """
    text = (os.environ if environ is None else environ).get("CLOSERANKS_LAB")
    if not text:
        return None
    lab = json.loads(text)
    rate = lab.get("rate_bytes_per_s")
    if not rate or lab.get("sites", 1) > 1 or lab["nodes"] < 2:
        return None
    nics = lab.get("nics", 1)
    return Wire(lab["nodes"], rate * nics, (lab.get("burst_bytes") or 0) * nics)


TABLE = Path("/proc/self/net/dev")
"""The counters of /sys/class/net/*/statistics, as this process's own network
namespace has them even where /sys shows another's."""

_SENT = 8


def sent_bytes(table: str) -> dict[str, int]:
    """Read the table of ``/proc/net/dev``.

    Parameters
    ----------
    table : str
        Its text.

    Returns
    -------
    dict of str to int
        Bytes sent by each interface except the loopback.
    """
    counters = {}
    for line in table.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo" and numbers:
            counters[name.strip()] = int(numbers.split()[_SENT])
    return counters


def node_sent_bytes() -> dict[str, int]:
    """Read what each NIC of this node has sent since it started; local.

    Returns
    -------
    dict of str to int
        Bytes by interface, headers included, loopback excluded.

    Raises
    ------
    Unavailable
        If the kernel has no such table.
    """
    try:
        return sent_bytes(TABLE.read_text())
    except OSError as cause:
        raise Unavailable(f"{TABLE} ({cause})", "leave out --counters") from cause


def evenness(sent: Mapping[str, float]) -> float:
    """Compare the NICs of a node that take part.

    Parameters
    ----------
    sent : mapping of str to float
        Bytes by interface.

    Returns
    -------
    float
        Bytes of the idlest one, in percent of the busiest.  NICs with less
        than a thousandth of that take no part.  100 where nothing was sent.
    """
    most = max(sent.values(), default=0)
    return min((100 * n / most for n in sent.values() if 1000 * n > most), default=100.0)


def nic_columns(comm: MPI.Intracomm, call: Callable[[], object]) -> dict[str, float]:
    """Read what one call sends from the busiest node, and how evenly; of three.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks.
    call : callable
        The call, collective over the ranks.

    Returns
    -------
    dict
        ``nic_tx_bytes_max`` and ``nic_even_percent``, the same on every rank.
    """
    calls = 3
    comm.Barrier()
    before = node_sent_bytes()
    comm.Barrier()
    for _ in range(calls):
        call()
    comm.Barrier()
    sent = {name: (n - before.get(name, 0)) / calls for name, n in node_sent_bytes().items()}
    return {
        "nic_tx_bytes_max": float(max(comm.allgather(sum(sent.values())))),
        "nic_even_percent": float(min(comm.allgather(evenness(sent)))),
    }
