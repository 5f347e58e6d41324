"""Numbers among the arguments: seconds, factors, probabilities."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.errors import UsageError

#: Seconds and factors beyond these are refused: squares of their products would overflow.
SMALLEST: Final = 1e-50
LARGEST: Final = 1e50


def number(
    where: str, name: str, value: Any, *, least: float = 0, most: float = LARGEST
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
    found = math.nan
    if isinstance(value, Real):
        with suppress(OverflowError):
            found = float(value)
    if least <= found <= most:
        return found
    bounds = f"{least:g} to {most:g}"
    raise UsageError(where, f"{name} is {argument.shown(value)}", f"give {bounds}")


def check_work(where: str, fixed_s: float, compute_s: float) -> None:
    """Refuse rounds that take no time.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    fixed_s, compute_s : float
        Seconds of a round.

    Raises
    ------
    UsageError
        If both are 0, or too small to be divided by.
    """
    if fixed_s + compute_s < SMALLEST:
        problem = "fixed_s and compute_s are 0"
        if fixed_s + compute_s:
            problem = f"fixed_s is {fixed_s:g} and compute_s {compute_s:g}"
        raise UsageError(where, problem, f"give seconds above 0, from {SMALLEST:g} on")


def real_numbers(values: Any) -> NDArray[np.float64]:
    """Read an array of real numbers; complex ones have no order.  Local.

    Parameters
    ----------
    values : array_like
        The numbers.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If they are none.
    """
    found = np.asarray(values)
    if found.dtype.kind == "c":
        raise TypeError("complex numbers")
    return np.asarray(found, np.float64)
