"""Boxes cut into pieces of a bounded size, in the order of their elements."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from closeranks.partitioning.layout.box import Bounds, shape_of


class Cut(NamedTuple):
    """How a box is cut: along one axis, and at every index of those before it.

    Attributes
    ----------
    axis : int
        The axis that is cut; -1 if the box is one piece.
    rows : int
        Indices of it in a piece.
    turns : int
        Pieces along it.
    pieces : int
        Pieces in all; 0 if the box is empty.
    """

    axis: int
    rows: int
    turns: int
    pieces: int


def cut(box: Bounds, most: int) -> Cut:
    """Say how a box is cut.

    Parameters
    ----------
    box : tuple of (int, int)
        What to cut.
    most : int
        Elements in a piece at most, at least 1.

    Returns
    -------
    Cut
        With pieces as large as they can be.
    """
    shape = shape_of(box)
    total = prod(shape)
    if total <= most:
        return Cut(-1, 0, 1, 1 if total else 0)
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        if inner * shape[axis] > most:
            rows = most // inner
            turns = -(-shape[axis] // rows)
            return Cut(axis, rows, turns, prod(shape[:axis]) * turns)
        inner *= shape[axis]
    raise AssertionError(box)  # total is inner


def piece(box: Bounds, most: int, number: int) -> Bounds | None:
    """Give one piece of a box.

    Parameters
    ----------
    box : tuple of (int, int)
        What is cut.
    most : int
        Elements in a piece at most, at least 1.
    number : int
        Which piece, from 0 on.

    Returns
    -------
    tuple of (int, int) or None
        None if there are fewer.
    """
    how = cut(box, most)
    if number >= how.pieces:
        return None
    if how.axis < 0:
        return box
    number, turn = divmod(number, how.turns)
    found = list(box)
    start, stop = box[how.axis]
    start += turn * how.rows
    found[how.axis] = start, min(stop, start + how.rows)
    for axis in range(how.axis - 1, -1, -1):
        first, last = box[axis]
        number, at = divmod(number, last - first)
        found[axis] = first + at, first + at + 1
    return tuple(found)
