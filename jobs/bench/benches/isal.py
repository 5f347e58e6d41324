"""ISA-L, Intel's library of erasure codes, to be compared with.

Its shared library comes with the wheel of PyECLib, or with the system.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from closeranks.checkpoint.erasure.gf256 import Blocks, Bytes


@cache
def library() -> Any | None:
    """Load the library.

    Local.

    Returns
    -------
    CDLL or None
        None where there is none.
    """
    found = find_spec("pyeclib")
    parents = (
        [Path(place).parent for place in (found.submodule_search_locations or [])] if found else []
    )
    wheel = [str(path) for parent in parents for path in parent.glob("pyeclib.libs/libisal*.so*")]
    name = next(iter(wheel), None) or ctypes.util.find_library("isal")
    return ctypes.CDLL(name) if name else None


def product(matrix: Bytes, blocks: Blocks, results: Blocks) -> Callable[[], object]:
    """Prepare a product of its own.

    Local.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (rows, count)
        Factors.
    blocks, results : arrays of uint8, shapes (count, nbytes) and (rows, nbytes)
        What is multiplied, and where to.

    Returns
    -------
    callable
        Multiplies once.
    """
    isal, (rows, count) = library(), matrix.shape
    assert isal is not None
    factors, tables = np.ascontiguousarray(matrix), np.zeros(32 * matrix.size, np.uint8)
    isal.ec_init_tables(count, rows, *map(_place, (factors, tables)))
    places = [np.array([row.ctypes.data for row in part], np.int64) for part in (blocks, results)]
    length, *kept = ctypes.c_int(len(blocks[0])), tables, *places
    arguments = (length, ctypes.c_int(count), ctypes.c_int(rows), *map(_place, kept))
    multiply = isal.ec_encode_data

    def call() -> object:
        return kept and multiply(*arguments)

    return call


def _place(array: Any) -> ctypes.c_void_p:
    """Give where an array lies."""
    return ctypes.c_void_p(array.ctypes.data)
