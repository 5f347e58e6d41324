"""Numbers among the arguments: seconds, factors, probabilities."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from closeranks.comms import argument
from closeranks.errors import UsageError


def number(
    where: str, name: str, value: Any, *, least: float = 0, most: float = math.inf
) -> float:  # fmt: skip
    """Read a finite number.  Local.

    Parameters
    ----------
    where, name : str
        The call and the argument, for the text of an error.
    value : float
        The argument's value.
    least, most : float, optional
        Its bounds, both allowed.

    Returns
    -------
    float
        The same.

    Raises
    ------
    UsageError
        If it is none.
    """
    if isinstance(value, Real):
        found = float(value)
        if math.isfinite(found) and least <= found <= most:
            return found
    bounds = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
    raise UsageError(where, f"{name} is {argument.shown(value)}", f"give {bounds}")
