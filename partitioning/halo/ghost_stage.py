"""Staging memory of a halo: for copies inside of an array, and for sums.

NumPy makes a copy of its own where source and target lie in one array and
their strides do not tell that they are apart.  So copies inside of an array go
through memory that is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.partitioning.layout.box import Bounds, cells, shape_of, slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from closeranks.partitioning.halo.ghosts import GhostCopy

#: A peer, and the boxes of a message in its order.
Boxes = tuple[int, list[Bounds]]
#: The index of a box in an array, and memory of its shape.
Piece = tuple[tuple[slice, ...], "NDArray[Any]"]


def staged(boxes: Sequence[Bounds], dtype: np.dtype[Any]) -> tuple[NDArray[Any], list[Piece]]:
    """Make memory for the cells of a message.

    Parameters
    ----------
    boxes : sequence of boxes
        Of the message, in order.
    dtype : dtype
        Of the elements.

    Returns
    -------
    buffer : ndarray
        Takes the cells side by side.
    pieces : list of (index, ndarray)
        Each box, and its part of the buffer.
    """
    buffer, pieces, start = np.empty(sum(map(cells, boxes)), dtype), [], 0
    for box in boxes:
        pieces.append((slices(box), _shaped(buffer[start:], box)))
        start += cells(box)
    return buffer, pieces


class GhostStage:
    """Staging memory for arrays of one element type.  Local.

    Parameters
    ----------
    dtype : dtype
        Of the elements.
    own : sequence of GhostCopy
        Ghosts whose cells this rank owns itself.
    received, sent : sequence of (int, list of boxes)
        Peer -> ghosts that it owns, and cells of this rank that it has as ghosts.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        own: Sequence[GhostCopy],
        received: Sequence[Boxes],
        sent: Sequence[Boxes],
    ) -> None:
        self._dtype, self._sent = dtype, sent
        most = np.empty(max((cells(one.ghost) for one in own), default=0), dtype)
        self._own = [
            (slices(one.ghost), slices(one.source), _shaped(most, one.ghost)) for one in own
        ]
        self._ghosts = [slices(box) for _, boxes in received for box in boxes]

    @cached_property
    def _staged(self) -> list[tuple[NDArray[Any], list[Piece]]]:
        """Memory of each peer's ghosts; made when it is first asked for."""
        return [staged(boxes, self._dtype) for _, boxes in self._sent]

    @property
    def buffers(self) -> list[NDArray[Any]]:
        """Memory for what each peer's ghosts hold."""
        return [buffer for buffer, _ in self._staged]

    def copy_own(self, array: NDArray[Any]) -> None:
        """Fill the ghosts whose cells are in the same array.

        Parameters
        ----------
        array : ndarray
            Padded.
        """
        for ghost, source, stage in self._own:
            np.copyto(stage, array[source])
            np.copyto(array[ghost], stage)

    def add(self, array: NDArray[Any]) -> None:
        """Add what came to the cells that it belongs to; then ghosts are 0.

        Parameters
        ----------
        array : ndarray
            Padded; `buffers` hold what the peers' ghosts held.
        """
        for _, pieces in self._staged:
            for source, term in pieces:
                self._add_to(array[source], term)
        for ghost, source, stage in self._own:
            np.copyto(stage, array[ghost])
            self._add_to(array[source], stage)
            array[ghost] = 0
        for ghost in self._ghosts:
            array[ghost] = 0

    @cached_property
    def _sums(self) -> NDArray[Any]:
        """Memory for the sums of any box."""
        lengths = [cells(box) for _, boxes in self._sent for box in boxes]
        lengths += [stage.size for _, _, stage in self._own]
        return np.empty(max(lengths, default=0), self._dtype)

    def _add_to(self, target: NDArray[Any], term: NDArray[Any]) -> None:
        """Add contiguous terms; NumPy would allocate buffers for a target with gaps."""
        sums = self._sums[: target.size].reshape(target.shape)
        np.copyto(sums, target)
        np.add(sums, term, out=sums)
        np.copyto(target, sums)


def _shaped(memory: NDArray[Any], box: Bounds) -> NDArray[Any]:
    """View the first elements of some memory as a box."""
    shape = shape_of(box)
    return memory[: prod(shape)].reshape(shape)
