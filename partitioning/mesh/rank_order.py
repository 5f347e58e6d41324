"""The order of the ranks in a mesh: rank by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.errors import UsageError


def ranks_by_position(axes: Mapping[str, int], order: Any) -> npt.NDArray[np.int64]:
    """Give the rank at each position of a mesh.

    Parameters
    ----------
    axes : mapping of str to int
        Name -> size.
    order : None, str or array_like of int
        None: rank = position, the last axis varies fastest.  Names joined by
        "-": the first varies fastest (Megatron-LM, ``parallel_state.py``).
        Ranks, of the shape of the mesh or in a row.

    Returns
    -------
    ndarray, shape (sizes of the axes), dtype int64
        Read-only.

    Raises
    ------
    UsageError
        If the names are not the axes, or the ranks no permutation.
    """
    shape = tuple(axes.values())
    if order is None:
        ranks = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
    elif isinstance(order, str):
        ranks = _by_names(axes, order)
    else:
        ranks = _given(shape, order)
    ranks.setflags(write=False)
    return ranks


def _by_names(axes: Mapping[str, int], order: str) -> npt.NDArray[np.int64]:
    """Give each position its rank; the first name varies fastest."""
    names = order.split("-")
    if sorted(names) != sorted(axes):
        raise UsageError("Mesh", f"order {argument.shown(order)} does not name the axes",
                         f"name each of {', '.join(axes)} once, joined by '-'")  # fmt: skip
    stride, strides = 1, {}
    for name in names:
        strides[name] = stride
        stride *= axes[name]
    shape = tuple(axes.values())
    ranks = np.zeros(shape, dtype=np.int64)
    for place, (name, size) in enumerate(axes.items()):
        along = [1] * len(shape)
        along[place] = size
        ranks += (np.arange(size, dtype=np.int64) * strides[name]).reshape(along)
    return ranks


def _given(shape: tuple[int, ...], order: Any) -> npt.NDArray[np.int64]:
    """Read ranks; refuse anything but a permutation."""
    size = int(np.prod(shape, dtype=np.int64))
    remedy = f"give each rank of 0..{size - 1} once, in shape {shape}"
    try:
        found = np.asarray(order)
    except (TypeError, ValueError):
        raise UsageError("Mesh", f"order is {argument.shown(order)}", remedy) from None
    if found.shape not in (shape, (size,)) or found.dtype.kind not in "iu":
        problem = f"order has shape {found.shape} and dtype {found.dtype}"
        raise UsageError("Mesh", problem, remedy)
    ranks = found.astype(np.int64).reshape(shape)
    counts = np.bincount(ranks.reshape(-1).clip(0, size - 1), minlength=size)
    outside = ranks[(ranks < 0) | (ranks >= size)]
    if outside.size:
        raise UsageError("Mesh", f"rank {int(outside[0])} in the order", remedy)
    if counts.max() > 1:
        raise UsageError("Mesh", f"rank {int(counts.argmax())} twice in the order", remedy)
    return ranks
