"""An element type in words that are the same in every process."""

from __future__ import annotations

from typing import Any

import numpy as np


def element_words(dtype: np.dtype[Any]) -> str:
    """Write an element type so that other types have other words.

    Parameters
    ----------
    dtype : dtype
        Of an array; fields of a structured one may lie in any order.

    Returns
    -------
    str
        The same in every process.
    """
    fields: Any = dtype.fields
    if fields is None:
        return f"{dtype} {dtype.str}"
    return f"{[(name, *fields[name][:2]) for name in dtype.names or ()]} {dtype.itemsize}"
