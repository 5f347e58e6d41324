"""Local arrays of a conversion: what they must be, their bytes, their reductions."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.comms.result_memory import RESULTS
from closeranks.errors import UsageError
from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Partial

Array = NDArray[Any]
_WHERE: Final = "redistribute"
_UFUNCS: Final[dict[str, np.ufunc]] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
#: So much is spent on finding out whether two views share an element.
_WORK: Final[Any] = 10_000


def checked(name: str, array: Any, shape: tuple[int, ...]) -> Array:
    """Read a local array.

    Parameters
    ----------
    name : str
        The argument, for the text of an error.
    array : object
        What was given.
    shape : tuple of int
        That of the rank's part.

    Returns
    -------
    ndarray
        The array, as no subclass.

    Raises
    ------
    UsageError
        If it is no array on the host, of another shape, or of objects.
    """
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__cuda_array_interface__"):
            raise UsageError(_WHERE, f"{name} lies on a device",
                             "copy it to the host, such as by cupy.asnumpy")  # fmt: skip
        raise UsageError(_WHERE, f"{name} is {argument.shown(array)}", "give a NumPy array")
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(_WHERE, f"{name} is masked: its mask would be lost",
                         "give array.filled(value), or convert data and mask")  # fmt: skip
    if array.shape != shape:
        raise UsageError(_WHERE, f"{name} has shape {array.shape}",
                         f"give the rank's part, {shape}: see Layout.local_shape")  # fmt: skip
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise UsageError(_WHERE, f"{name} has dtype {array.dtype}", "give elements without objects")
    return np.asarray(array)


def checked_out(out: Any, array: Array, shape: tuple[int, ...]) -> Array:
    """Read the array that takes a result.

    Parameters
    ----------
    out : object
        What was given.
    array : ndarray
        What is read.
    shape : tuple of int
        That of the rank's part.

    Returns
    -------
    ndarray
        The array.

    Raises
    ------
    UsageError
        If it is no such array, of another dtype, read-only, or shares memory
        with what is read.
    """
    found = checked("out", out, shape)
    if found.dtype != array.dtype:
        raise UsageError(_WHERE, f"array of {array.dtype}, out of {found.dtype}",
                         "give both the same dtype")  # fmt: skip
    if not found.flags.writeable:
        raise UsageError(_WHERE, "out is read-only", "give an array that can be written")
    try:
        shared = np.shares_memory(found, array, _WORK)
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise UsageError(_WHERE, "out and array share memory", "give two arrays")
    return found


def made(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Make an array for a result.

    Parameters
    ----------
    shape : tuple of int
        That of the rank's part.
    dtype : dtype
        Its elements.

    Returns
    -------
    ndarray
        Not initialised, in C order.

    Raises
    ------
    UsageError
        If there is no memory for it.
    """
    try:
        return RESULTS.array(shape, dtype)
    except (MemoryError, ValueError):  # the latter: more than can be addressed
        raise UsageError(_WHERE, f"no memory for {shape} of {dtype}",
                         "use more ranks, or give out") from None  # fmt: skip


def ops_of(layout: Layout) -> frozenset[str]:
    """Give the reduction of a layout, if it has one.

    Parameters
    ----------
    layout : Layout
        The layout.

    Returns
    -------
    frozenset of str
        At most one op.
    """
    return frozenset(how.op for how in layout.placements if isinstance(how, Partial))


def check_reducible(dtype: np.dtype[Any], ops: frozenset[str]) -> None:
    """Refuse elements that a reduction does not take.

    Parameters
    ----------
    dtype : dtype
        Of the arrays.
    ops : frozenset of str
        The reductions.

    Raises
    ------
    UsageError
        If one of them does not take them.
    """
    for op in sorted(ops):
        if dtype.kind == "c" and op != "sum":
            raise UsageError(_WHERE, f"{op} of {dtype}: complex numbers have no order",
                             "reduce real and imaginary parts, or their sizes")  # fmt: skip
        if not _works(op, dtype):
            raise UsageError(_WHERE, f"{op} of elements of {dtype}",
                             "use numbers, or layouts that are not Partial")  # fmt: skip


@cache
def _works(op: str, dtype: np.dtype[Any]) -> bool:
    """Tell whether there is such a reduction of elements."""
    if dtype.names or dtype.subdtype:
        return False
    try:
        neutral(op, dtype)
        one = np.zeros(1, dtype)
        return bool(_UFUNCS[op](one, one).dtype == dtype.newbyteorder("="))
    except (TypeError, ValueError):
        return False


def neutral(op: str, dtype: np.dtype[Any]) -> Any:
    """Give what changes nothing in a reduction.

    Parameters
    ----------
    op : str
        "sum", "min" or "max".
    dtype : dtype
        A number type.

    Returns
    -------
    scalar
        0; or infinity, the greatest or the least number.

    Raises
    ------
    TypeError, ValueError
        If there is none.
    """
    if op == "sum":
        return dtype.type(0)
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        found = np.iinfo(dtype)
        return dtype.type(found.max if op == "min" else found.min)
    sign = 1.0 if op == "min" else -1.0
    with np.errstate(all="ignore"):
        infinite = np.asarray(sign * np.inf).astype(dtype)
    if np.isinf(infinite):
        return infinite[()]
    import ml_dtypes

    finite: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # a type without infinity
    return finite.max if op == "min" else finite.min


def combine(op: str, target: Array, term: Array, *, first: bool, is_left: bool = False) -> None:
    """Add a term to a value.

    Parameters
    ----------
    op : str
        "sum", "min" or "max".
    target : ndarray
        The value so far, and afterwards.
    term : ndarray
        Of the same shape and dtype.
    first : bool
        Whether it is the first term: the value so far does not count.
    is_left : bool
        Whether the term stands before the value.
    """
    if first:
        np.copyto(target, term)
        return
    with np.errstate(all="ignore"):
        pair = (term, target) if is_left else (target, term)
        _UFUNCS[op](*pair, out=target)


def raw(array: Array) -> Array:
    """Give an array as elements that are copied bit by bit.

    Parameters
    ----------
    array : ndarray
        Of any dtype without objects.

    Returns
    -------
    ndarray
        A view, of the same shape and strides.
    """
    size = array.dtype.itemsize
    if array.dtype.isnative and array.dtype.kind in "iu":
        return array
    return array.view(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")
