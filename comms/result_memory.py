"""Memory of results, used again when the program has dropped them.

A new array of many pages costs as much as the call that fills it: the kernel
clears each page at its first use.  So the memory of the last results is kept,
and taken again once no array refers to it.
"""

from __future__ import annotations

import sys
from math import prod
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Shorter results come from the allocator's own reserve; longer ones are not kept.
LEAST: Final = 1 << 20
MOST: Final = 256 << 20
#: So many are kept: a loop reads one result, of two arrays maybe, while it makes the next.
_COUNT: Final = 4
#: Results have room for an eighth more at most: their lengths change from call to call.
_ROOM_BITS: Final = 3


def _references(kept: list[NDArray[np.uint8]], at: int) -> int:
    """Count what refers to kept memory: a view does, and what was made of a view."""
    return sys.getrefcount(kept[at])


#: The same for memory that nobody else has, in this version of Python.
_UNUSED: Final = _references([np.empty(1, np.uint8)], 0)


class ResultMemory:
    """Memory of the last results: at most four of `MOST` bytes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[NDArray[np.uint8]] = []

    def array(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Make an array that shares memory with no other one in use.  Local.

        Parameters
        ----------
        shape : int or tuple of int
            Its shape.
        dtype : dtype
            Its elements, without objects.

        Returns
        -------
        ndarray
            Not initialised, in C order.

        Raises
        ------
        MemoryError, ValueError
            If there is no memory for it.
        """
        kind = np.dtype(dtype)
        nbytes = prod(np.atleast_1d(shape).tolist()) * kind.itemsize
        if not LEAST <= nbytes <= MOST:
            return np.empty(shape, kind)
        with self._lock:
            found: NDArray[Any] = self._taken(nbytes)[:nbytes].view(kind).reshape(shape)
        return found

    def _taken(self, nbytes: int) -> NDArray[np.uint8]:
        """Give memory of a length or somewhat more, from what is kept if it can be."""
        unit = 1 << (nbytes.bit_length() - 1 - _ROOM_BITS)
        room = -(-nbytes // unit) * unit
        unused = []
        for at in range(len(self._kept)):
            if _references(self._kept, at) == _UNUSED:
                if self._kept[at].nbytes == room:
                    return self._kept[at]
                unused.append(at)
        fresh = np.empty(room, np.uint8)
        if unused:
            self._kept[unused[0]] = fresh
        elif len(self._kept) < _COUNT:
            self._kept.append(fresh)
        return fresh


#: That of this process.
RESULTS: Final = ResultMemory()
