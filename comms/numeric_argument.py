"""Readers for numbers among the arguments of checkpoints.

They differ from `closeranks.comms.argument` in texts that users know: messages
read ``name=value``, bounds read "from 1 on", values are cut at 80 characters.
Truth values are refused.
"""

from __future__ import annotations

import operator
from math import isfinite
from typing import Any, Final

import numpy as np

from closeranks.errors import UsageError

#: Characters of a value in a message.
_SHOWN: Final = 80


def shown(value: object) -> str:
    """Write any value for a message, in short.

    Local.

    Parameters
    ----------
    value : object
        The argument's value.
    """
    try:
        text = repr(value)
    except Exception:  # of any class: also for integers of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def whole(operation: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """Give a whole number as a plain one.

    Local.

    Parameters
    ----------
    operation, name : str
        For the message.
    value : int
        Or any object with ``__index__``; truth values are refused.
    least, most : int
        Its bounds, both allowed; no upper bound if ``most`` is None.

    Returns
    -------
    int
        The value.

    Raises
    ------
    UsageError
        If it is no whole number, or outside of its bounds.
    """
    bounds = f"from {least} on" if most is None else f"from {least} to {most}"
    bounds = "of 64 bits" if most == (1 << 63) - 1 else bounds
    try:
        found = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least or (most is not None and found > most):
        raise UsageError(operation, f"{name}={shown(value)}", f"give a whole number {bounds}")
    return found


def real(value: Any) -> float | None:
    """Give a number as a plain one; None if it is none, or not finite.

    Local.

    Parameters
    ----------
    value : float
        Or any other number; truth values and texts count as none.
    """
    if isinstance(value, bool | np.bool_ | str | bytes):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if isfinite(found) else None
