"""What is passed to a halo, read and checked; nothing here talks MPI."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from closeranks.comms import argument
from closeranks.comms.buffers.half_as_float import HALVES
from closeranks.errors import UsageError
from closeranks.partitioning.halo.ghosts import Ghosts, Sides
from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Partial

_WIDTHS: Final = "give a whole number, or one or a pair (low, high) for each array axis"
#: Bits of `digest_of`: a double holds them.
_BITS: Final = 52


def read_ghosts(layout: Any, width: Any, periodic: Any, corners: Any) -> Ghosts:
    """Read the arguments of `Halo`.

    Parameters
    ----------
    layout, width, periodic, corners : object
        As `Halo` takes them.

    Returns
    -------
    Ghosts
        The ghost cells of every rank.

    Raises
    ------
    UsageError
        If they do not fit each other.
    """
    argument.instance("Halo", "layout", layout, Layout, "give a Layout")
    for how in layout.placements:
        if isinstance(how, Partial):
            problem = f"the layout has {how}: no rank holds a value"
            raise UsageError("Halo", problem, "convert it first with redistribute")
    widths, rings = read_widths(layout, width), read_periodic(layout, periodic)
    for axis, (sides, ring, length) in enumerate(
        zip(widths, rings, layout.global_shape, strict=True)
    ):
        if ring and max(sides) > length:
            problem = f"width {max(sides)} on periodic axis {axis}, which has {length} cells"
            raise UsageError("Halo", problem, f"give at most {length}")
    return Ghosts(layout, widths, rings, corners=_truth("corners", corners))


def read_widths(layout: Layout, width: Any) -> list[Sides]:
    """Read the widths of the ghosts.

    Parameters
    ----------
    layout : Layout
        Has the array's axes.
    width : object
        A number for all, or one item an axis: a number, or a pair.

    Returns
    -------
    list of (int, int)
        Low and high on each array axis.

    Raises
    ------
    UsageError
        If it is nothing of this, or negative.
    """
    ndim = len(layout.global_shape)
    items = _items(width)
    if items is None:
        return [(_side(width),) * 2] * ndim
    if len(items) != ndim:
        raise UsageError("Halo", f"{len(items)} widths for {ndim} array axes", _WIDTHS)
    found = []
    for item in items:
        sides = _items(item)
        if sides is None:
            sides = [item, item]
        if len(sides) != 2:
            raise UsageError("Halo", f"a width is {argument.shown(item)}", _WIDTHS)
        found.append((_side(sides[0]), _side(sides[1])))
    return found


def read_periodic(layout: Layout, periodic: Any) -> list[bool]:
    """Read which array axes are rings.

    Parameters
    ----------
    layout : Layout
        Has the array's axes.
    periodic : object
        A truth for all, or one an axis.

    Returns
    -------
    list of bool
        One an array axis.

    Raises
    ------
    UsageError
        If there are too few or many.
    """
    ndim = len(layout.global_shape)
    items = _items(periodic)
    if items is None:
        return [_truth("periodic", periodic)] * ndim
    if len(items) != ndim:
        problem = f"{len(items)} values of periodic for {ndim} array axes"
        raise UsageError("Halo", problem, "give True, False or one an axis")
    return [_truth("a value of periodic", one) for one in items]


def digest_of(ghosts: Ghosts) -> int:
    """Give a number that is equal where all ranks mean the same halo.

    Parameters
    ----------
    ghosts : Ghosts
        What the arguments meant.

    Returns
    -------
    int
        A double holds it.
    """
    layout = ghosts.layout
    hashed = hashlib.blake2b(described(ghosts).encode(), digest_size=8)
    for numbers in (layout.mesh.ranks, *layout.bounds):
        hashed.update(np.ascontiguousarray(numbers, np.int64).tobytes())
    return int.from_bytes(hashed.digest(), "little") >> (64 - _BITS)


def described(ghosts: Ghosts) -> str:
    """Write what the arguments meant, for readers.

    Parameters
    ----------
    ghosts : Ghosts
        What the arguments meant.

    Returns
    -------
    str
        One line.
    """
    widths, periodic = list(ghosts.widths), list(ghosts.periodic)
    return f"{ghosts.layout}, {widths}, periodic={periodic}, corners={ghosts.corners}"


def check_array(operation: str, array: Any, shape: tuple[int, ...]) -> None:
    """Refuse what is no padded array of a rank.  Local.

    Parameters
    ----------
    operation : str
        The call, for the text of an error.
    array : object
        As given.
    shape : tuple of int
        What it must have.

    Raises
    ------
    UsageError
        If it is no array of that shape that can be written.
    """
    remedy = f"give a writable array of shape {shape}, such as .empty(dtype)"
    argument.instance(operation, "the array", array, np.ndarray, remedy)
    if array.shape != shape:
        raise UsageError(operation, f"an array of shape {array.shape}", remedy)
    if not array.flags.writeable:
        raise UsageError(operation, "the array is read-only", remedy)
    if array.dtype.hasobject:
        raise UsageError(operation, f"elements of type {array.dtype} are objects", remedy)


def check_numbers(operation: str, dtype: np.dtype[Any]) -> None:
    """Refuse elements that have no sum.  Local.

    Parameters
    ----------
    operation : str
        The call, for the text of an error.
    dtype : dtype
        Of the elements.

    Raises
    ------
    UsageError
        If they are not numbers.
    """
    if dtype.kind not in "iufc" and dtype.name not in HALVES:
        raise UsageError(operation, f"elements of type {dtype} have no sum",
                         "give an array of numbers")  # fmt: skip


def _items(value: Any) -> list[Any] | None:
    """Give what a sequence holds; None for a number."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None
    return None if isinstance(value, np.ndarray) and not value.ndim else list(value)


def _truth(name: str, value: Any) -> bool:
    """Read one truth."""
    try:
        return bool(value)
    except (TypeError, ValueError):  # such as an array of several
        raise UsageError("Halo", f"{name} is {argument.shown(value)}",
                         "give True or False") from None  # fmt: skip


def _side(value: Any) -> int:
    """Read one width."""
    return argument.whole("Halo", "a width", value)
