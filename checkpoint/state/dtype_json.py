"""The types of elements of arrays, as plain JSON."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from closeranks.errors import CheckpointError


def write_dtype(dtype: np.dtype[Any]) -> Any:
    """Write a type: its name where NumPy's description says too little.

    Local.

    Parameters
    ----------
    dtype : dtype
        Of an array.
    """
    described: Any = np.lib.format.dtype_to_descr(dtype)
    return dtype.name if described == dtype.str and not _says_all(dtype) else described


def _says_all(dtype: np.dtype[Any]) -> bool:
    """Tell whether NumPy makes the same type of its own description."""
    with suppress(TypeError):  # some it does not know itself
        return np.dtype(dtype.str) == dtype
    return False


def read_dtype(described: Any) -> np.dtype[Any]:
    """Read the type of an array's elements.

    Local.

    Parameters
    ----------
    described : object
        As `write_dtype` has written it.

    Returns
    -------
    dtype
        Without objects.

    Raises
    ------
    CheckpointError
        If it is none.
    """
    import ml_dtypes  # noqa: F401 - which makes its names known to NumPy

    try:
        plain = described if isinstance(described, str) else _tuples(described)
        dtype = np.dtype(plain) if isinstance(plain, str) else np.lib.format.descr_to_dtype(plain)
    except (TypeError, ValueError, KeyError, SyntaxError) as error:
        raise CheckpointError("restore", f"no type of elements: {str(described)[:80]}") from error
    if dtype.hasobject:
        raise CheckpointError("restore", "elements that are objects", "they are never read")
    return dtype


def _tuples(described: Any) -> Any:
    """Give fields as NumPy wants them; JSON knows lists alone."""
    if isinstance(described, list):
        return [tuple(_tuples(part) if isinstance(part, list) and part and isinstance(part[0], list)
                      else tuple(part) if isinstance(part, list) else part
                      for part in field) for field in described]  # fmt: skip
    return described
