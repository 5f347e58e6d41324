"""A number of an element type, which goes with every message of a halo."""

from __future__ import annotations

from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from closeranks.partitioning.layout.element_words import element_words


@cache
def kind_of(dtype: np.dtype[Any]) -> int:
    """Give a number of an element type: the tag of its messages.

    Parameters
    ----------
    dtype : dtype
        Of an array.

    Returns
    -------
    int
        1 to 32 749, the same in every process; other types nearly always have
        others.
    """
    return crc32(element_words(dtype).encode()) % 32749 + 1
