"""Identity of this machine: boot identity and network addresses."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Most addresses that are told to other ranks.
MOST: Final = 8
#: Characters of a boot identity that count.
_BOOT_CHARACTERS: Final = 64


def boot_id(root: Path) -> str:
    """Return the running kernel's boot identity.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    str
        Equal in all containers of one machine, "" if unknown.
    """
    with suppress(OSError):
        text = (root / "proc/sys/kernel/random/boot_id").read_text(errors="replace")
        return text.strip()[:_BOOT_CHARACTERS]
    return ""


def own_addresses() -> list[str]:
    """List the addresses of this machine, or of this node of a lab.

    Local.

    Returns
    -------
    list of str
        IPv4 addresses, at most `MOST`, this machine's own loop last.
    """
    import psutil  # takes 20 ms, and only jobs of several nodes ask

    found = [
        one.address
        for name in psutil.net_if_addrs().values()
        for one in name
        if one.family == socket.AF_INET
    ]
    outer = [one for one in found if not one.startswith("127.")]
    return [*outer[: MOST - 1], "127.0.0.1"]
