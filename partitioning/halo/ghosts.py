"""Ghost cells: copies of cells of other parts that surround a part.

Pure geometry.  A rank finds the transfers that it takes part in by looking at
each array axis alone, and multiplies: no loop runs over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from closeranks.partitioning.layout.box import Bounds, cells
from closeranks.partitioning.layout.layout import Layout

#: Widths of an axis' ghosts: at its low end, at its high end.
Sides = tuple[int, int]


class GhostCopy(NamedTuple):
    """Cells that an owner copies into the ghosts of a holder.

    Attributes
    ----------
    peer : int
        The owner for what a rank receives, the holder for what it sends.
    ghost : tuple of (int, int)
        Start and stop on each axis in the holder's padded array.
    source : tuple of (int, int)
        The same in the owner's padded array.
    """

    peer: int
    ghost: Bounds
    source: Bounds


class _Stretch(NamedTuple):
    """One axis of a transfer: the part at the other end, and both ranges."""

    part: int
    ghost: tuple[int, int]
    source: tuple[int, int]
    is_ghost: bool


class Ghosts:
    """The ghost cells of every rank of a layout, and who owns them.

    A part ``[start, stop)`` with widths ``(low, high)`` has the global cells
    ``start - low .. start`` and ``stop .. stop + high`` as ghosts, modulo the
    length on a periodic axis.  Cells outside of the array have no owner.  All
    this holds for empty parts, too.

    Parameters
    ----------
    layout : Layout
        Without Partial.
    widths : sequence of (int, int)
        Low and high width on each array axis, at least 0; on a periodic axis at
        most its length.
    periodic : sequence of bool
        Array axis -> whether it is a ring.
    corners : bool
        Whether cells that are ghosts on two or more axes count.
    """

    def __init__(
        self, layout: Layout, widths: Sequence[Sides], periodic: Sequence[bool], *, corners: bool
    ) -> None:
        self.layout, self.corners = layout, corners
        self.widths, self.periodic = tuple(widths), tuple(periodic)

    def shape(self, rank: int) -> tuple[int, ...]:
        """Give the shape of a rank's padded array: its part, and ghosts at both ends.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of int
            One an array axis.
        """
        return tuple(
            low + length + high
            for (low, high), length in zip(self.widths, self.layout.local_shape(rank), strict=True)
        )

    def interior(self, rank: int) -> Bounds:
        """Give where a rank's own part lies in its padded array.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        tuple of (int, int)
            Start and stop on each array axis.
        """
        return tuple(
            (low, low + length)
            for (low, _), length in zip(self.widths, self.layout.local_shape(rank), strict=True)
        )

    def received(self, rank: int) -> list[GhostCopy]:
        """List what a rank needs, from itself too.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        list of GhostCopy
            Ordered by owner, then by place in this rank's array.
        """
        parts = self.layout.part(rank)
        return self._transfers(rank, [list(self._needed(*one)) for one in enumerate(parts)])

    def sent(self, rank: int) -> list[GhostCopy]:
        """List what other ranks, and this one, need of a rank's part.

        Parameters
        ----------
        rank : int
            A rank of the mesh.

        Returns
        -------
        list of GhostCopy
            Ordered by holder, then by place in the holder's array: a pair of ranks
            lists its transfers in one order at both ends.
        """
        parts = self.layout.part(rank)
        return self._transfers(rank, [list(self._wanted(*one)) for one in enumerate(parts)])

    def shortest_run(self, owner: int, holder: int, copies: Sequence[GhostCopy]) -> int:
        """Give the shortest run of cells that lie side by side at both ends.

        Parameters
        ----------
        owner, holder : int
            Ranks of the mesh.
        copies : sequence of GhostCopy
            From one to the other; at least one.

        Returns
        -------
        int
            In cells, for arrays in C order.
        """
        there, here = self.shape(owner), self.shape(holder)
        runs = [(_run(one.source, there), _run(one.ghost, here)) for one in copies]
        return min(map(min, runs))

    def _transfers(self, rank: int, axes: Sequence[Sequence[_Stretch]]) -> list[GhostCopy]:
        """Multiply what was found on each axis; at least one stretch must be a ghost."""
        found = []
        for stretches in product(*axes):
            ghosts = sum(one.is_ghost for one in stretches)
            if not ghosts or (ghosts > 1 and not self.corners):
                continue
            ghost = tuple(one.ghost for one in stretches)
            if cells(ghost):
                peer = self._rank_at(rank, [one.part for one in stretches])
                found.append(GhostCopy(peer, ghost, tuple(one.source for one in stretches)))
        return sorted(found)

    def _rank_at(self, rank: int, parts: Sequence[int]) -> int:
        """Give who holds some parts, of the ranks that hold the same copy as ``rank``."""
        mesh = self.layout.mesh
        where = list(mesh.coordinates(rank))
        for axes, part in zip(self.layout.splitters, parts, strict=True):
            number = part
            for axis in reversed(axes):
                number, where[axis] = divmod(number, mesh.shape[axis])
        return int(mesh.ranks[tuple(where)])

    def _range(self, axis: int, part: int) -> tuple[int, int]:
        cuts = self.layout.bounds[axis]
        return int(cuts[part]), int(cuts[part + 1])

    def _needed(self, axis: int, part: int) -> Iterator[_Stretch]:
        """Find which parts own the cells of a part and of its ghosts, on one axis."""
        (low, high), (start, stop) = self.widths[axis], self._range(axis, part)
        inside = (low, low + stop - start)
        yield _Stretch(part, inside, inside, is_ghost=False)
        first = start - low  # of the padded array, in global numbers
        for a, b in ((first, start), (stop, stop + high)):
            for turn in self._turns(axis):
                begin = max(a, turn)
                end = min(b, turn + self.layout.global_shape[axis])
                for owner, p, q in self._owners(axis, begin - turn, end - turn):
                    at = self._range(axis, owner)[0] - low
                    ghost = (p + turn - first, q + turn - first)
                    yield _Stretch(owner, ghost, (p - at, q - at), is_ghost=True)

    def _turns(self, axis: int) -> tuple[int, ...]:
        """Give where copies of the array begin on an axis: one, or three on a ring."""
        length = self.layout.global_shape[axis]
        return (-length, 0, length) if self.periodic[axis] and length else (0,)

    def _owners(self, axis: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Cut a global range into the parts that own it."""
        cuts = self.layout.bounds[axis]
        while begin < end:
            owner = int(np.searchsorted(cuts, begin, "right")) - 1  # the one that is not empty
            until = min(end, int(cuts[owner + 1]))
            yield owner, begin, until
            begin = until

    def _wanted(self, axis: int, part: int) -> Iterator[_Stretch]:
        """Find which parts have cells of a part, or are it, on one axis.

        A low ghost reaches from its part's start by ``low``, so only parts that
        start near the cells can have them; the same holds for stops.
        """
        cuts = self.layout.bounds[axis]
        (low, high), (start, stop) = self.widths[axis], self._range(axis, part)
        inside = (low, low + stop - start)
        yield _Stretch(part, inside, inside, is_ghost=False)
        for turn in self._turns(axis):
            here, there = start + turn, stop + turn
            sides = (
                (cuts[:-1], -low, 0, here, there + low),
                (cuts[1:], 0, high, here - high, there),
            )
            for ends, before, after, above, below in sides:
                first = int(np.searchsorted(ends, above, "right"))
                for holder in range(first, int(np.searchsorted(ends, below, "left"))):
                    end = int(ends[holder])
                    shared = max(end + before, here), min(end + after, there)
                    yield from self._overlap(axis, holder, shared, here)

    def _overlap(
        self, axis: int, holder: int, shared: tuple[int, int], start: int
    ) -> Iterator[_Stretch]:
        """Give the stretch of a holder's ghosts that a part owns, if there is one."""
        if shared[0] < shared[1]:
            low, first = self.widths[axis][0], self._range(axis, holder)[0]
            p, q = shared
            at = first - low
            yield _Stretch(
                holder, (p - at, q - at), (p - start + low, q - start + low), is_ghost=True
            )


def _run(box: Bounds, shape: tuple[int, ...]) -> int:
    """Give how many cells of a box lie side by side in an array in C order."""
    found = 1
    for (start, stop), length in zip(reversed(box), reversed(shape), strict=True):
        found *= stop - start
        if stop - start < length:
            break
    return found
