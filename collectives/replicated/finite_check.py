"""Health of the leaves of a state: whether all their numbers are finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def illness(leaf: object) -> str:
    """Tell what is wrong with the numbers of a leaf: "NaN", "Inf" or nothing.  Local.

    Numbers inside of structures count, those under a mask do not.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        found = {_illness(part.compressed()) for part in _parts(leaf)}
    elif isinstance(leaf, np.ndarray | np.generic | float | complex):
        found = {_illness(part) for part in _parts(np.asarray(leaf))}
    else:
        return ""
    return max(found, default="")  # of "", "Inf" and "NaN" the worst


def _parts(values: NDArray[Any]) -> Iterator[Any]:
    """Give the numbers of a structure, field by field."""
    if values.dtype.names is None:
        yield values
        return
    for name in values.dtype.names:
        yield from _parts(values[name])


def _illness(values: NDArray[Any]) -> str:
    if not _may_be_ill(values.dtype) or np.isfinite(values).all():
        return ""
    return "NaN" if np.isnan(values).any() else "Inf"


def _may_be_ill(dtype: np.dtype[Any]) -> bool:
    """Tell whether not every number of a dtype is finite.

    Short floats of other packages (bfloat16, float8) say that they are voids.
    """
    if dtype.kind != "V":
        return dtype.kind in "fc"
    if dtype.type is np.void:
        return False
    try:
        np.isfinite(np.empty(0, dtype))
    except TypeError:
        return False
    return True
