"""Where an array lies, without keeping it alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from closeranks.partitioning.layout.box import Bounds, slices

if TYPE_CHECKING:
    from numpy.typing import NDArray


def address_of(array: NDArray[Any]) -> int:
    """Give the address of the element with all indices 0.

    Parameters
    ----------
    array : ndarray
        Any.

    Returns
    -------
    int
        Valid as long as the array lives and is not resized.
    """
    found: int = array.__array_interface__["data"][0]
    return found


def view_at(array: NDArray[Any], box: Bounds) -> NDArray[Any]:
    """View a box of an array by its address: the array is not kept alive.

    Parameters
    ----------
    array : ndarray
        Not empty.
    box : tuple of (int, int)
        Start and stop on each axis.

    Returns
    -------
    ndarray
        To be used only while an array lies there.
    """
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(min(0, one) for one in reach)
    nbytes = before + sum(max(0, one) for one in reach) + array.itemsize
    memory: Any = MPI.buffer.fromaddress(address_of(array) - before, nbytes)
    whole: NDArray[Any] = np.ndarray(
        array.shape, array.dtype, buffer=memory, offset=before, strides=array.strides
    )
    return whole[slices(box)]
