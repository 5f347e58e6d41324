"""Strided blocks of memory in one canonical form.

An array with gaps, or an MPI datatype, is a list of runs of bytes in packed
order.  If the list is regular, it is written here as nested loops, after
Pearson et al., "TEMPI: An Interposed MPI Library with a Canonical
Representation of CUDA-aware Datatypes" (HPDC 2021), section 3.  Loops of one
turn are dropped, neighbours merged, a dense innermost loop folded into the
run.  One step of the paper is left out: loops are not sorted by stride,
because that would change the order of the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Dimension = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class StridedBlock:
    """Runs of bytes at regular places, in the order of nested loops.

    Made by `block`, `of_array` and `closeranks.comms.buffers.typemap.typemap`;
    two that list the same bytes in the same order are equal.

    Attributes
    ----------
    start : int
        Bytes from the origin to the first run; the origin of an array is its
        element with all indices 0.
    counts, strides : tuple of int
        Turns of each loop, at least 2, and bytes from turn to turn, outermost
        first; strides may be negative or 0.
    run : int
        Bytes in a run; 0 if the block is empty.
    """

    start: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    run: int

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Pairs of count and stride, outermost first."""
        return tuple(zip(self.counts, self.strides, strict=True))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        total = self.run
        for count in self.counts:
            total *= count
        return total

    @cached_property
    def disjoint(self) -> bool:
        """Whether no byte is listed twice, as far as strides alone tell.

        False may be wrong (loops that interleave), True never is.
        """
        reach = self.run
        for count, stride in sorted(self.dimensions, key=lambda one: abs(one[1])):
            if abs(stride) < reach:
                return False
            reach += (count - 1) * abs(stride)
        return True

    def repeated(self, count: int, stride: int) -> StridedBlock:
        """Put a loop around it.

        Parameters
        ----------
        count : int
            Turns, at least 0.
        stride : int
            Bytes from turn to turn.

        Returns
        -------
        StridedBlock
            With the same start, unless it is empty.
        """
        return block(self.start, [(count, stride), *self.dimensions], self.run)

    def shifted(self, nbytes: int) -> StridedBlock:
        """Give the same block further on; one that is empty stays.

        Parameters
        ----------
        nbytes : int
            How far.

        Returns
        -------
        StridedBlock
            Equal but for its start.
        """
        return block(self.start + nbytes, self.dimensions, self.run)

    def offsets(self) -> NDArray[np.int64]:
        """List where every byte lies, in packed order.

        Returns
        -------
        ndarray of int64
            Shape (nbytes,), bytes from the origin.
        """
        places = np.array([self.start], np.int64)
        for count, stride in (*self.dimensions, (self.run, 1)):
            places = (places[:, None] + np.arange(count) * stride).reshape(-1)
        return places


def block(start: int, dimensions: Iterable[Dimension], run: int) -> StridedBlock:
    """Bring loops over runs into their canonical form.

    Parameters
    ----------
    start : int
        Bytes from the origin to the first run.
    dimensions : iterable of (int, int)
        Count and stride in bytes of each loop, outermost first.
    run : int
        Bytes in a run.

    Returns
    -------
    StridedBlock
        The same bytes in the same order, in as few loops as possible.
    """
    kept: list[Dimension] = []  # innermost first
    nothing = run == 0
    for count, stride in reversed(list(dimensions)):
        nothing = nothing or count == 0
        if count == 1:
            continue
        if not kept and stride == run:
            run *= count
        elif kept and stride == kept[-1][0] * kept[-1][1]:
            kept[-1] = (kept[-1][0] * count, kept[-1][1])
        else:
            kept.append((count, stride))
    if nothing:
        return StridedBlock(0, (), (), 0)
    return StridedBlock(
        start, tuple(n for n, _ in kept[::-1]), tuple(s for _, s in kept[::-1]), run
    )


def of_array(array: NDArray[Any]) -> StridedBlock:
    """Describe the elements of an array, in the order of its indices.

    Parameters
    ----------
    array : ndarray
        Of any strides: negative ones run backwards; with a stride of 0 an element
        is listed as often as it appears.

    Returns
    -------
    StridedBlock
        Its origin is the element with all indices 0.
    """
    return of_layout(array.shape, array.strides, array.itemsize)


def of_layout(shape: Shape, strides: Shape, itemsize: int) -> StridedBlock:
    """Describe the elements of an array of a layout.

    Parameters
    ----------
    shape, strides : tuple of int
        As an array's.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    StridedBlock
        As `of_array`.
    """
    return block(0, zip(shape, strides, strict=True), itemsize)


def entries(array: NDArray[Any], first: int, count: int) -> NDArray[Any] | None:
    """Take elements out of an array, counted in the order of its indices.

    Parameters
    ----------
    array : ndarray
        Any array.
    first, count : int
        The first one, and how many.

    Returns
    -------
    ndarray or None
        A view; None where they begin or end amid a row and so have no shape.
    """
    if first == 0 and count == array.size:
        return array
    array = np.asarray(array)  # rows of a matrix are matrices, without end
    while array.ndim and count:
        row = array.size // len(array)
        at, within = divmod(first, row)
        if within == 0 and count % row == 0:
            return array[at : at + count // row]
        if within + count > row:
            return None
        array, first = array[at], within
    return None
