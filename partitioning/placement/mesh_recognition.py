"""A mesh found again in messages that were given as a matrix."""

from __future__ import annotations

from math import prod
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.partitioning.mesh.traffic import Messages
from closeranks.partitioning.mesh.volume import Volume

#: Bytes that differ by less belong to one axis.
_ALIKE: Final = 1.05
_MOST_AXES: Final = 8

Ints = npt.NDArray[np.int64]


class RecognisedMesh(NamedTuple):
    """Axes whose messages are those of a graph, or nearly.

    Attributes
    ----------
    shape : tuple of int
        Sizes of the axes.
    sending : dict of int to Volume
        Index of each axis -> what is sent along it.
    positions : ndarray, shape (size,), dtype int64
        Number of each process' position in the mesh.
    """

    shape: tuple[int, ...]
    sending: dict[int, Volume]
    positions: Ints


def recognised(sent: Messages, size: int) -> RecognisedMesh | None:
    """Find the mesh whose axes have messages of different sizes.

    The messages of an axis are those of one number of bytes.  Without them the
    graph falls into slices, one a coordinate of the axis; the messages between
    slices tell the pattern, and the order of the slices.

    Parameters
    ----------
    sent : Messages
        Between processes, at most one from each to each other.
    size : int
        Number of processes.

    Returns
    -------
    RecognisedMesh or None
        None if the messages are of another form.
    """
    values = np.unique(sent.nbytes)
    bounds = np.flatnonzero(values[1:] > values[:-1] * _ALIKE)
    if not values.size or bounds.size >= _MOST_AXES:
        return None
    kinds = np.searchsorted(values[bounds + 1], sent.nbytes, side="right")
    shape, sending, coordinates = [], {}, []
    for axis in range(bounds.size + 1):
        mine = kinds == axis
        slices = _connected(sent.sources[~mine], sent.targets[~mine], size)
        count = int(slices.max()) + 1
        each = float(sent.nbytes[mine].mean())
        found = _line(slices[sent.sources[mine]], slices[sent.targets[mine]], count, each)
        if found is None:
            return None
        sending[axis], numbers = found
        shape.append(count)
        coordinates.append(numbers[slices])
    if prod(shape) != size:
        return None
    positions = np.ravel_multi_index(tuple(coordinates), tuple(shape)).astype(np.int64)
    if np.unique(positions).size < size:
        return None
    return RecognisedMesh(tuple(shape), sending, positions)


def _connected(sources: Ints, targets: Ints, size: int) -> Ints:
    """Give each process the number of its connected part of a graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(sources.size), (sources, targets)), shape=(size, size))
    labels: Ints = connected_components(graph.tocsr(), directed=False)[1].astype(np.int64)
    return labels


def _line(sources: Ints, targets: Ints, count: int, each: float) -> tuple[Volume, Ints] | None:
    """Give the pattern among the slices of an axis, and the coordinate of each slice."""
    if count == 1 or (sources == targets).any():
        return None
    pairs = np.unique(sources * count + targets)
    out = np.bincount(pairs // count, minlength=count)
    if pairs.size == count * (count - 1):
        return Volume(each * (count - 1), "all"), np.arange(count)
    next_to = [(pairs[pairs // count == one] % count).tolist() for one in range(count)]
    start = 0
    if (out == 1).all():
        pattern = "ring"
    elif (out == 2).all():
        pattern = "torus"
    elif pairs.size == 2 * (count - 1) and (out <= 2).all() and (out == 1).sum() == 2:
        pattern, start = "line", int(out.argmin())
    else:
        return None
    numbers = np.full(count, -1, dtype=np.int64)
    for number in range(count):
        numbers[start] = number
        start = next((one for one in next_to[start] if numbers[one] < 0), start)
    return (Volume(each, pattern), numbers) if (numbers >= 0).all() else None
