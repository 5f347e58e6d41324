"""The addresses of this machine, or of this node of a lab."""

from __future__ import annotations

import socket
from typing import Final

import psutil

#: How many are named to others at most.
MOST: Final = 8


def own_addresses() -> list[str]:
    """List where this machine can be reached.

    Local.

    Returns
    -------
    list of str
        IPv4 addresses, at most `MOST`, this machine's own loop last.
    """
    found = [
        one.address
        for name in psutil.net_if_addrs().values()
        for one in name
        if one.family == socket.AF_INET
    ]
    outer = [one for one in found if not one.startswith("127.")]
    return [*outer[: MOST - 1], "127.0.0.1"]
