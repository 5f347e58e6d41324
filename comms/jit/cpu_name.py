"""What the processor of this node is called."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

_CPUINFO = Path("/proc/cpuinfo")
#: Longer names are cut.
MOST: Final = 128
#: What architectures call it, the most telling first.
_KEYS = ("model name", "cpu model", "cpu", "hardware", "cpu part")


def processor(cpuinfo: Path = _CPUINFO) -> str:
    """Name the processor.

    Local.

    Parameters
    ----------
    cpuinfo : Path
        What Linux says of it, or a recording.

    Returns
    -------
    str
        Its model, else the architecture.
    """
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip().lower(), " ".join(value.split()))
    found = next((said[key] for key in _KEYS if said.get(key)), "")
    return (found or platform.machine() or "unknown")[:MOST]
