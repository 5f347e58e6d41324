"""Boxes: an index range on each axis of an array."""

from __future__ import annotations

from math import prod

#: (start, stop) on each axis.
Bounds = tuple[tuple[int, int], ...]


def shape_of(bounds: Bounds) -> tuple[int, ...]:
    """Give the lengths of a box.

    Parameters
    ----------
    bounds : tuple of (int, int)
        Start and stop on each axis.

    Returns
    -------
    tuple of int
        One an axis.
    """
    return tuple(stop - start for start, stop in bounds)


def cells(bounds: Bounds) -> int:
    """Give the number of elements in a box.

    Parameters
    ----------
    bounds : tuple of (int, int)
        Start and stop on each axis.

    Returns
    -------
    int
        At least 0; 1 for no axes.
    """
    return prod(shape_of(bounds))


def intersection(a: Bounds, b: Bounds) -> Bounds | None:
    """Give what two boxes share.

    Parameters
    ----------
    a, b : tuple of (int, int)
        Of one number of axes.

    Returns
    -------
    tuple of (int, int) or None
        None if they share no element.
    """
    shared = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return shared if all(start < stop for start, stop in shared) else None


def slices(bounds: Bounds, origin: tuple[int, ...] | None = None) -> tuple[slice, ...]:
    """Give a box as an index of NumPy.

    Parameters
    ----------
    bounds : tuple of (int, int)
        Start and stop on each axis.
    origin : tuple of int, optional
        Where the array to be indexed starts in these numbers; 0 if not given.

    Returns
    -------
    tuple of slice
        One an axis.
    """
    starts = origin if origin is not None else (0,) * len(bounds)
    return tuple(slice(a - at, b - at) for (a, b), at in zip(bounds, starts, strict=True))
