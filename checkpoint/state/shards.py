"""The types of elements of arrays, as plain JSON.

How the ranks share an entry of a state: parts of an array, or a value each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from closeranks.errors import CheckpointError, UsageError


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


class Shard:
    """What this rank holds of an array that the ranks have together.

    Parameters
    ----------
    array : array
        The part: NumPy's, or of any library with DLPack or the CUDA array
        interface, on the host or on a device.
    global_shape : sequence of int
        Shape of the whole.
    offset : sequence of int
        Where the part starts in it, on each axis.
    padded : bool
        The part may reach beyond the whole.  What is there makes parts equal and
        means nothing: `restore` into a part of other bounds leaves it as it is.

    Attributes
    ----------
    array : array
        As given.
    global_shape, offset : tuple of int
        As given.
    padded : bool
        As given.

    Raises
    ------
    UsageError
        If the part is not inside of the whole, and not `padded`.

    Examples
    --------
    >>> import numpy as np
    >>> Shard(np.ones((2, 4)), global_shape=(8, 4), offset=(6, 0))
    Shard(float64, (2, 4) of (8, 4) from (6, 0))
    """

    __slots__ = ("array", "global_shape", "offset", "padded")

    def __init__(
        self,
        array: Any,
        global_shape: Sequence[int],
        offset: Sequence[int],
        padded: bool = False,
    ) -> None:
        self.array, self.padded = array, padded
        self.global_shape = tuple(int(length) for length in global_shape)
        self.offset = tuple(int(start) for start in offset)
        same = len(array.shape) == len(self.global_shape) == len(self.offset)
        if not same or any(
            start < 0 or whole < 0 or (start + length > whole and not padded)
            for start, length, whole in zip(
                self.offset, array.shape, self.global_shape, strict=True
            )
        ):
            found = f"{tuple(array.shape)} from {self.offset} of {self.global_shape}"
            raise UsageError("Shard", f"a part of shape {found}",
                             "give a part inside the whole, or padded=True")  # fmt: skip

    def __repr__(self) -> str:
        place = f"{tuple(self.array.shape)} of {self.global_shape} from {self.offset}"
        return f"Shard({self.array.dtype}, {place})"


class PerRank:
    """A value of which every rank has one of its own.

    Parameters
    ----------
    value : object
        An array, a number, a text, bytes, or a tree of them.  In what `restore` is
        to fill: a function of the values of all old ranks, and of the new rank,
        which gives that rank's.

    Attributes
    ----------
    value : object
        As given.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"PerRank({self.value!r})"
