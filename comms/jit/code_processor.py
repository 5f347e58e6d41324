"""The processor that compiled code is made for, as the kernel describes it.

A process that only loads code asks the kernel, not LLVM, whose import takes
longer than all else that loading does.  Code uses what both know: two
processors of one description run the same code, whatever else they can do.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
#: What tells one kind of processor from another, of all architectures.
_KINDS: Final = frozenset(
    {
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "Features",
        "cpu",
        "revision",
        "machine",
        "processor 0",
        "features",
        "isa",
        "uarch",
    }
)
#: The kernel's names of features that LLVM names otherwise, points and underscores apart.
_KERNEL_NAMES: Final = {
    "64bit": "lm",
    "bmi": "bmi1",
    "crc32": "sse42",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "sahf": "lahflm",
    "sha": "shani",
    "sse3": "pni",
}
#: Enough for the description of the first processor; there may be hundreds.
_READ_BYTES: Final = 8192


def described(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Describe the first processor: equal for two that run the same code.

    Local.

    Parameters
    ----------
    cpuinfo : Path
        Linux' description, or a recording.

    Returns
    -------
    tuple of str
        The architecture, and what the kernel says.
    """
    found = _first(cpuinfo)
    told = (f"{key}: {found[key]}" for key in sorted(_KINDS & found.keys()))
    return platform.machine(), *told


def common(features: dict[str, bool], cpuinfo: Path = CPUINFO) -> dict[str, bool]:
    """Leave out of LLVM's features those that `described` does not tell.

    Local.

    Parameters
    ----------
    features : dict of str to bool
        By LLVM's name.
    cpuinfo : Path
        As for `described`.

    Returns
    -------
    dict of str to bool
        As given; on x86, where LLVM asks the processor itself, False for what the
        kernel does not name.
    """
    named = _first(cpuinfo).get("flags")
    if named is None:  # LLVM asks the kernel
        return features
    known = {_plain(name) for name in named.split()}
    return {
        name: is_there and _KERNEL_NAMES.get(name, _plain(name)) in known
        for name, is_there in features.items()
    }


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").replace("-", "")


def _first(cpuinfo: Path) -> dict[str, str]:
    """Read what the kernel says of the first processor."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_READ_BYTES)
    except OSError:
        return {}
    lines = text.strip().partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): " ".join(value.split()) for key, _, value in pairs}
