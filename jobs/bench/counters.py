"""The bytes a node's NICs sent, from the kernel's own counters."""

from __future__ import annotations

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


def node_sent_bytes() -> int:
    """Add up what this node has sent since it started; local.

    Returns
    -------
    int
        Bytes, headers included, loopback excluded.

    Raises
    ------
    Unavailable
        If the kernel has no such table.
    """
    try:
        return sum(sent_bytes(TABLE.read_text()).values())
    except OSError as cause:
        raise Unavailable(f"{TABLE} ({cause})", "leave out --counters") from cause
