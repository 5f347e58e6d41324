"""Options that were typed: those that mean nothing to a benchmark are refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import click
from click.core import ParameterSource

from closeranks.errors import UsageError

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
