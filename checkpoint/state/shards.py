"""How the ranks share an entry of a state: parts of an array, or a value each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeranks.errors import UsageError


class Shard:
    """The part that this rank holds of an array that the ranks have together.

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
        The part may reach beyond the whole.  The padding makes parts equal and
        means nothing: `restore` into a part of other bounds leaves it as it
        is.

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
