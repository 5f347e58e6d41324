"""The names ``closeranks bench`` understands.

Message sizes as people write them: ``8:64M``, ``1K:1M:4``, ``1000,64K``.

Options that were typed: those that mean nothing to a benchmark are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

import click
from click.core import ParameterSource

from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES

POINT_TO_POINT = ("pingpong", "bandwidth", "bibandwidth", "pairs", "matrix")
LOCAL = ("pack",)
#: What ``all`` stands for.
ALL = (*COLLECTIVES, *POINT_TO_POINT)
#: Measured when named: they look at one part of the package, and some take long where
#: ranks share cores.
APART = (
    "steps", *LOCAL, "overlap", "init", "faults", "churn", "erasure", "checkpoint", "snapshot",
)  # fmt: skip
NAMES = (*ALL, *APART)


def expand(names: Iterable[str]) -> list[str]:
    """Replace ``all`` and drop repetitions.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Names in `NAMES`, in the order they were first typed.

    Raises
    ------
    UsageError
        If there is none, or an unknown one.
    """
    chosen: dict[str, None] = {}
    for name in names:
        if name not in (*NAMES, "all"):
            raise UsageError("bench", f"unknown benchmark {name!r}", f"choose from: {_choices()}")
        chosen.update(dict.fromkeys(ALL if name == "all" else (name,)))
    if not chosen:
        raise UsageError("bench", "no benchmark named", f"choose from: {_choices()}")
    return list(chosen)


def collectives_among(names: Iterable[str]) -> list[str]:
    """Return the collectives that the names stand for.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Those in `COLLECTIVES`.

    Raises
    ------
    UsageError
        As `expand`.
    """
    return [name for name in expand(names) if name in COLLECTIVES]


def _choices() -> str:
    """List all that can be typed."""
    return " ".join((*NAMES, "all"))


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


#: What those understand that are named alone: they share nothing with others.
_UNDERSTOOD: Final = {
    "faults": ("kinds", "recruits", "json_path"),
    "churn": ("minutes", "members", "spares", "seed", "json_path"),
    "erasure": ("data", "parity", "sizes", "budget", "json_path"),
}


def typed() -> dict[str, str]:
    """Find the options of the command line.

    Returns
    -------
    dict of str to str
        How each is called in Python -> how it is typed; without those that were
        left out.
    """
    context = click.get_current_context()
    options = [one for one in context.command.params if isinstance(one, click.Option)]
    return {
        str(one.name): "/".join((*one.opts, *one.secondary_opts))
        for one in options
        if context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
    }


def check_typed(names: Iterable[str], options: Mapping[str, str]) -> None:
    """Refuse options that mean nothing to a benchmark that is named alone.

    Parameters
    ----------
    names : iterable of str
        Of benchmarks.
    options : mapping of str to str
        As of `typed`.

    Raises
    ------
    UsageError
        If there are some.
    """
    for name in names:
        understood = _UNDERSTOOD.get(name, tuple(options))
        unknown = [words for one, words in options.items() if one not in understood]
        if unknown:
            raise UsageError(f"bench {name}", f"no meaning for {', '.join(unknown)}",
                             "leave that out")  # fmt: skip


def finite(context: click.Context, option: click.Parameter, value: float) -> float:
    """Take a number that is one; a range lets the others pass.

    Parameters
    ----------
    context : click.Context
        As click gives it.
    option : click.Parameter
        Likewise.
    value : float
        What was read.

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
