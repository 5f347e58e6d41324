"""The words of ``closeranks plan``: machines, links, axes, volumes, grids.

Sizes are bytes, with K, M and G as powers of 1024, as `closeranks bench` types
them.  Rates are bytes/s, with powers of 1000, as `closeranks topology` prints
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from closeranks.comms import argument
from closeranks.comms.topology.link import Link
from closeranks.errors import UsageError
from closeranks.partitioning.mesh.volume import PATTERNS, Volume

_BINARY: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER: Final = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_AMOUNT: Final = re.compile(_NUMBER + r"\s*([KMGT]?)(i?)(?:B(?:/s)?)?", re.IGNORECASE)
_TIME: Final = re.compile(_NUMBER + r"\s*(ns|us|ms|s)", re.IGNORECASE)


def pairs(option: str, text: str, remedy: str) -> dict[str, str]:
    """Read ``name=value,name=value``.

    Parameters
    ----------
    option : str
        That holds it.
    text : str
        The words.
    remedy : str
        How to write it.

    Returns
    -------
    dict of str to str
        In the order of the text.

    Raises
    ------
    UsageError
        If a part has no name or no value, or a name stands twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value) or name in found:
            raise UsageError(f"plan {option}", f"cannot read {argument.shown(text)}", remedy)
        found[name] = value
    return found


def whole_pairs(option: str, text: str, remedy: str) -> dict[str, int]:
    """Read ``name=2,name=4``.

    Parameters
    ----------
    option, text, remedy : str
        As of `pairs`.

    Returns
    -------
    dict of str to int
        In the order of the text.

    Raises
    ------
    UsageError
        If a value is no whole number of at least 1.
    """
    return {
        name: whole(option, value, remedy) for name, value in pairs(option, text, remedy).items()
    }


def whole(option: str, text: str, remedy: str, least: int = 1) -> int:
    """Read a whole number.

    Parameters
    ----------
    option, text, remedy : str
        As of `pairs`.
    least : int
        The lowest that is allowed.

    Returns
    -------
    int
        The number.

    Raises
    ------
    UsageError
        If it is none, or lower.
    """
    word = text.strip()
    if not (word.isascii() and word.isdigit()) or len(word) > 18 or int(word) < least:
        problem = f"{argument.shown(text)} is no whole number of at least {least}"
        raise UsageError(f"plan {option}", problem, remedy)
    return int(word)


def link(option: str, text: str) -> tuple[str, Link]:
    """Read a link such as ``site=5.96M:100us`` or ``node=12.5G:5us:4``.

    Parameters
    ----------
    option : str
        That holds it.
    text : str
        Level, bytes/s of one rail, latency, and rails if there are several.

    Returns
    -------
    level : str
        Its name.
    link : Link
        The link.

    Raises
    ------
    UsageError
        If it cannot be read.
    """
    remedy = "write level=rate:latency[:rails], such as site=5.96M:100us"
    ((level, said),) = pairs(option, text, remedy).items()
    parts = said.split(":")
    if len(parts) not in (2, 3):
        raise UsageError(f"plan {option}", f"cannot read {argument.shown(text)}", remedy)
    rate = _amount(option, parts[0], _DECIMAL, remedy)
    time = _TIME.fullmatch(parts[1].strip())
    if time is None:
        raise UsageError(f"plan {option}", f"{argument.shown(parts[1])} is no time", remedy)
    rails = whole(option, parts[2], remedy) if len(parts) == 3 else 1
    return level, Link(float(time[1]) * _SECONDS[time[2].lower()], rate, rails)


def volumes(option: str, texts: Iterable[str]) -> dict[str, Volume]:
    """Read volumes such as ``dp=ring:4M``.

    Parameters
    ----------
    option : str
        That holds them.
    texts : iterable of str
        Axis, pattern and bytes of each.

    Returns
    -------
    dict of str to Volume
        By axis.

    Raises
    ------
    UsageError
        If one cannot be read, or an axis has two.
    """
    remedy = f"write axis=pattern:bytes, such as dp=ring:4M; patterns are {', '.join(PATTERNS)}"
    found: dict[str, Volume] = {}
    for text in texts:
        for axis, said in pairs(option, text, remedy).items():
            pattern, colon, nbytes = said.partition(":")
            if not colon or axis in found:
                problem = f"cannot read {argument.shown(text)}" if not colon else f"{axis} twice"
                raise UsageError(f"plan {option}", problem, remedy)
            found[axis] = Volume(_bytes(option, nbytes, remedy), pattern.strip())
    return found


def _bytes(option: str, text: str, remedy: str) -> int | float:
    nbytes = _amount(option, text, {k: float(v) for k, v in _BINARY.items()}, remedy)
    return int(nbytes) if nbytes.is_integer() else nbytes


def _amount(option: str, text: str, units: dict[str, float], remedy: str) -> float:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"plan {option}", f"{argument.shown(text)} is no number", remedy)
    scale = float(_BINARY[found[2].upper()]) if found[3] else units[found[2].upper()]
    return float(found[1]) * scale


def grid(option: str, text: str) -> tuple[int, ...]:
    """Read the shape of a global array, such as ``512x512x256``.

    Parameters
    ----------
    option : str
        That holds it.
    text : str
        The shape.

    Returns
    -------
    tuple of int
        Its lengths.

    Raises
    ------
    UsageError
        If a length is no whole number of at least 1.
    """
    remedy = "write lengths with x between them, such as 512x512x256"
    return tuple(whole(option, part, remedy) for part in text.lower().split("x"))


def one_or_each(option: str, text: str, count: int) -> tuple[int, ...]:
    """Read one number for all axes, or one for each.

    Parameters
    ----------
    option : str
        That holds it.
    text : str
        ``1`` or ``1,2,1``.
    count : int
        Number of axes.

    Returns
    -------
    tuple of int
        One an axis.

    Raises
    ------
    UsageError
        If they are neither.
    """
    remedy = f"write one number, or {count} with commas between them"
    found = tuple(whole(option, part, remedy, least=0) for part in text.split(","))
    if len(found) not in (1, count):
        raise UsageError(f"plan {option}", f"{len(found)} numbers for {count} axes", remedy)
    return found * count if len(found) == 1 else found
