"""Readers for arguments of public calls; bad values raise with name and value.

Everything here is local.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from contextlib import suppress
from numbers import Real
from threading import TIMEOUT_MAX
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.errors import UsageError

#: Above this no count or number of bytes fits the words that it is kept in.
MOST: Final = 2**62
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_BRIEF: Final = reprlib.Repr()
_BRIEF.maxother = 80


def whole(
    where: str,
    name: str,
    value: Any,
    *,
    least: int = 0,
    below: int = MOST,
    error: type[UsageError] = UsageError,
) -> int:
    """Read a whole number.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    name : str
        The argument, for the same.
    value : object
        The argument's value.
    least, below : int, optional
        Bounds: the first is allowed, the second is not.
    error : type, optional
        Class of the error.

    Returns
    -------
    int
        The number.

    Raises
    ------
    UsageError
        If it is no whole number between these.
    """
    bounds = f"a whole number, {least} <= {name}" + (f" < {below}" if below != MOST else "")
    try:
        number = operator.index(value)
    except TypeError:
        raise error(where, f"{name} is {shown(value)}", f"give {bounds}") from None
    if not least <= number < below:
        raise error(where, f"{name} is {shown(number)}", f"give {bounds}")
    return number


def array(where: str, name: str, value: Any) -> NDArray[Any]:
    """Read an array.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    name : str
        The argument, for the same.
    value : array_like
        The argument's value.

    Returns
    -------
    ndarray
        The array itself, or one made of lists of equal lengths.

    Raises
    ------
    UsageError
        If NumPy can make none of it, or it has a mask, which would be lost.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(where, f"{name} is masked: its mask would be lost",
                         "give array.filled(value)")  # fmt: skip
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as wrong:
        raise UsageError(
            where, f"{name} is {shown(value)}, no array", "give numbers, or rows of equal lengths"
        ) from wrong


def patience(where: str, value: Any) -> float:
    """Read how many seconds a caller waits at most.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    value : object
        The argument's value.

    Returns
    -------
    float
        At least 0: negative values count as 0.  Infinity is as long as it takes.

    Raises
    ------
    UsageError
        If it is no number, or NaN.
    """
    if not isinstance(value, Real) or math.isnan(value):
        problem = f"timeout_s is {shown(value)}"
        raise UsageError(where, problem, "give seconds, or None: as long as it takes")
    return max(0.0, float(value)) if value < TIMEOUT_MAX else math.inf


def check_timeout(where: str, timeout_s: float | None) -> None:
    """Raise UsageError unless a timeout is None or positive.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    timeout_s : float or None
        Seconds.
    """
    given: object = timeout_s  # whatever its type says
    if timeout_s is not None and not (isinstance(given, Real) and timeout_s > 0):
        raise UsageError(where, f"timeout_s is {shown(given)}", "give seconds above 0, or None")


def instance(
    where: str,
    name: str,
    value: object,
    kind: Any,
    remedy: str,
    *,
    error: type[UsageError] = UsageError,
) -> None:
    """Refuse a value that is not of a kind.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    name : str
        The argument, for the same.
    value : object
        The argument's value.
    kind : type
        The required class; abstract classes, such as Mapping, are allowed.
    remedy : str
        A way out, for the text of the error.
    error : type, optional
        Class of the error.

    Raises
    ------
    UsageError
        If the value is no instance of the class.
    """
    if not isinstance(value, kind):
        raise error(where, f"{name} is {shown(value)}", remedy)


def element_type(where: str, value: Any) -> np.dtype[Any]:
    """Read the type of an element.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    value : object
        Anything that NumPy takes for a dtype.

    Returns
    -------
    dtype
        The type.

    Raises
    ------
    UsageError
        If NumPy knows no such type, or its elements have no bytes.
    """
    dtype: np.dtype[Any] | None = None
    with suppress(TypeError, ValueError, SyntaxError):
        dtype = None if value is None else np.dtype(value)
    if dtype is None or not dtype.itemsize:
        remedy = "a NumPy name, such as float32, or bfloat16"
        raise UsageError(where, f"dtype {shown(value)}", remedy)
    return dtype


def shown(value: object) -> str:
    """Write a value in a few words, without addresses: alike on all ranks."""
    return " ".join(_ADDRESS.sub("", _BRIEF.repr(value)).split())
