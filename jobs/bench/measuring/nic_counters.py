"""The bytes a node's NICs sent, from the kernel's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from closeranks.errors import Unavailable

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
        Percent that the idlest one sent of what the busiest did; those with less
        than a thousandth of that take no part.  100 where nothing was sent.
    """
    most = max(sent.values(), default=0)
    return min((100 * n / most for n in sent.values() if 1000 * n > most), default=100.0)
