"""Which ranks hold a part of a layout, and which parts of two layouts meet.

Everything is worked out for one part at a time: nothing here goes over all
ranks or parts of a mesh in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial

#: Number of a part on each array axis.
Part = tuple[int, ...]
#: Coordinates of a rank along the mesh axes that a conversion leaves partial.
Key = tuple[int, ...]


class PartHolders:
    """The ranks that hold each part of a layout.

    Parameters
    ----------
    layout : Layout
        The layout.
    kept : tuple of int
        Mesh axes along which each rank keeps its own terms.
    first : bool
        Whether only the first member along other partial axes holds a part, as
        in a target; else all do, each a term, as in a source.

    Attributes
    ----------
    layout : Layout
        As given.
    terms : int
        Number of terms that make up a value; 1 if nothing is to be reduced.
    """

    def __init__(self, layout: Layout, kept: tuple[int, ...], *, first: bool) -> None:
        self.layout, self._kept = layout, kept
        shape = layout.mesh.shape
        self._index: list[int | slice] = [0] * len(shape)
        self._partial: list[int] = []
        for at, how in enumerate(layout.placements):
            if isinstance(how, Broadcast):
                self._index[at] = slice(None)
            elif isinstance(how, Partial) and at not in kept and not first:
                self._partial.append(at)
                self._index[at] = slice(None)
        self._sizes = shape
        self.terms = int(np.prod([shape[at] for at in self._partial], dtype=np.int64))

    def key(self, rank: int) -> Key:
        """Give a rank's coordinates along the axes that stay partial.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            One a kept axis.
        """
        if not self._kept:
            return ()
        at = self.layout.mesh.coordinates(rank)
        return tuple(at[axis] for axis in self._kept)

    def ranks(self, part: Part, key: Key) -> list[int]:
        """Give the ranks that hold a part.

        Parameters
        ----------
        part : tuple of int
            Number of the part on each array axis.
        key : tuple of int
            Where along the kept axes.

        Returns
        -------
        list of int
            Ascending.
        """
        found: Any = self.layout.mesh.ranks[self._at(part, key)]
        if isinstance(found, np.ndarray):
            return sorted(found.reshape(-1).tolist())
        return [int(found)]

    def ranks_by_term(self, part: Part, key: Key) -> list[list[int]]:
        """Give the ranks that hold each term of a part.

        Parameters
        ----------
        part : tuple of int
            Number of the part on each array axis.
        key : tuple of int
            Where along the kept axes.

        Returns
        -------
        list of list of int
            By coordinate along the partial axes, row-major; ranks ascending.
        """
        index = self._at(part, key)
        free = [axis for axis, at in enumerate(index) if isinstance(at, slice)]
        found = np.asarray(self.layout.mesh.ranks[index])
        order = [free.index(axis) for axis in self._partial]
        order += [at for at, axis in enumerate(free) if axis not in self._partial]
        rows: list[list[int]] = found.transpose(order).reshape(self.terms, -1).tolist()
        return [sorted(row) for row in rows]

    def _at(self, part: Part, key: Key) -> tuple[int | slice, ...]:
        """Give the index of a part's ranks in the ranks of the mesh."""
        index = list(self._index)
        for axis, at in zip(self._kept, key, strict=True):
            index[axis] = at
        for number, axes in zip(part, self.layout.splitters, strict=True):
            for axis in reversed(axes):
                number, index[axis] = divmod(number, self._sizes[axis])
        return tuple(index)


class Overlaps:
    """The parts of one layout that each part of another meets.

    Parameters
    ----------
    mine, other : Layout
        Layouts of one global shape.
    """

    def __init__(self, mine: Layout, other: Layout) -> None:
        self._spans = [
            _spans(a, b) for a, b in zip(mine.bounds, other.bounds, strict=True)
        ]  # axis -> first, and one behind the last

    def parts(self, part: Part) -> Iterator[Part]:
        """Give the parts of the other layout that may share elements with one.

        Parameters
        ----------
        part : tuple of int
            Part of the first layout.

        Returns
        -------
        iterator of tuple of int
            Row-major.
        """
        ranges = [
            range(int(first[n]), int(last[n]))
            for n, (first, last) in zip(part, self._spans, strict=True)
        ]
        return product(*ranges)

    def count(self, part: Part) -> int:
        """Give the number of parts that `parts` gives.

        Parameters
        ----------
        part : tuple of int
            Part of the first layout.

        Returns
        -------
        int
            At least 0.
        """
        return prod(
            int(last[n] - first[n]) for n, (first, last) in zip(part, self._spans, strict=True)
        )

    def number(self, part: Part, other: Part) -> int:
        """Give the place of a part in what `parts` gives.

        Parameters
        ----------
        part, other : tuple of int
            Parts of the first layout and of the other.

        Returns
        -------
        int
            Counted from 0.
        """
        number = 0
        for n, m, (first, last) in zip(part, other, self._spans, strict=True):
            number = number * int(last[n] - first[n]) + m - int(first[n])
        return number


def _spans(
    mine: npt.NDArray[np.int64], other: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give the first part that each part meets, and the one behind the last."""
    low, high = mine[:-1], mine[1:]
    first = np.maximum(np.searchsorted(other, low, "right") - 1, 0)
    last = np.searchsorted(other, high, "left")
    return first, np.where(low < high, last, first)
