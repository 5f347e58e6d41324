"""How numbers are typed on a command line, and how a table shows them.

Sizes are typed as ``8:64M``, ``1K:1M:4`` or ``1000,64K``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import click

from closeranks.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NUMBER = re.compile(r"(\d+)\s*([KMG]?)(?:I?B)?", re.IGNORECASE)
_REMEDY = "write 8:64M (powers of two), 8:64M:4 (a factor) or 1K,64K,1000 (a list)"
_MOST = 1 << 40


def parse_bytes(text: str) -> int:
    """Read one size; K, M and G are powers of 1024.

    Parameters
    ----------
    text : str
        For example ``"64K"``, ``"1000"`` or ``"4MiB"``.

    Returns
    -------
    int
        Bytes, at least 1.

    Raises
    ------
    UsageError
        If it is not a number of bytes from 1 to 1024 G.
    """
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise UsageError("bench --sizes", f"{text!r} is not a number of bytes", _REMEDY)
    nbytes = int(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= nbytes <= _MOST:
        raise UsageError("bench --sizes", f"{text!r} is outside 1 to 1024G bytes", _REMEDY)
    return nbytes


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read a range or a list of sizes.

    Parameters
    ----------
    text : str
        ``first:last`` doubles, ``first:last:factor`` multiplies, and commas
        separate sizes or ranges; ``last`` is met only if the steps hit it.

    Returns
    -------
    tuple of int
        Bytes, ascending, each once.

    Raises
    ------
    UsageError
        If the text has another form.

    Examples
    --------
    >>> parse_sizes("8:64")
    (8, 16, 32, 64)
    >>> parse_sizes("1K:1M:32,1000")
    (1000, 1024, 32768, 1048576)
    """
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part) if ":" in part else (parse_bytes(part),))
    return tuple(sorted(sizes))


def show_bytes(nbytes: int) -> str:
    """Write a size the way it is typed.

    Parameters
    ----------
    nbytes : int
        Bytes, at least 0.

    Returns
    -------
    str
        With the largest unit that leaves a whole number.

    Examples
    --------
    >>> show_bytes(65536), show_bytes(1000), show_bytes(3 << 20)
    ('64K', '1000', '3M')
    """
    for unit in ("G", "M", "K"):
        if nbytes and nbytes % _UNITS[unit] == 0:
            return f"{nbytes // _UNITS[unit]}{unit}"
    return str(nbytes)


def _range(text: str) -> list[int]:
    """List ``first * factor**i`` up to ``last``."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError("bench --sizes", f"{text!r} has more than three parts", _REMEDY)
    first, last = parse_bytes(parts[0]), parse_bytes(parts[1])
    factor = int(parts[2]) if len(parts) == 3 and parts[2].strip().isdigit() else 2
    if len(parts) == 3 and (not parts[2].strip().isdigit() or factor < 2):
        raise UsageError("bench --sizes", f"factor {parts[2]!r} is not at least 2", _REMEDY)
    if first > last:
        raise UsageError("bench --sizes", f"{parts[0]} is larger than {parts[1]}", _REMEDY)
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Read a list of numbers; UsageError if it is none.

    Parameters
    ----------
    option : str
        That holds it.
    text : str
        Numbers above 0, between commas.

    Returns
    -------
    tuple of int
        In the order of the text.
    """
    parts = text.split(",")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"bench {option}", f"{text!r} is no list of numbers", "write 4,8")
    return tuple(map(int, parts))


def finite(context: click.Context, option: click.Parameter, value: float) -> float:
    """Take a number that is one; a range lets the others pass.

    Parameters
    ----------
    context : click.Context
        As click gives it.
    option : click.Parameter
        Likewise.
    value : float
        The number.

    Returns
    -------
    float
        The same.

    Raises
    ------
    click.BadParameter
        If it is infinite, or not a number.
    """
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.", context, option)
    return value


def short(value: float) -> str:
    """Write a positive number with four significant digits, never as 1e5.

    Parameters
    ----------
    value : float
        Any number of at least 0.

    Returns
    -------
    str
        At most four digits after the point, none from 1000 on.
    """
    if value >= 1000:
        return f"{value:.0f}"
    decimals = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{decimals}f}"


def aligned(words: Iterable[object], widths: Iterable[int]) -> str:
    """Put each word at the right end of its column.

    Parameters
    ----------
    words : iterable of object
        One for each column.
    widths : iterable of int
        Characters of each column.

    Returns
    -------
    str
        One line.
    """
    return "".join(f"{word!s:>{width}}" for word, width in zip(words, widths, strict=True))
