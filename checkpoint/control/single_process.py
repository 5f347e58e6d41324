"""The channel of a single process, without MPI and without other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.generator_matrix import Bytes

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel, Numbers
else:  # it imports MPI
    ControlChannel = object

_T = TypeVar("_T")


class SingleProcessChannel(ControlChannel):
    """A channel of one rank with itself, see `ControlChannel`."""

    rank, size, epoch = 0, 1, 0

    def __init__(self) -> None:
        """Need nobody."""

    def least(self, values: Sequence[int] | Numbers) -> Numbers:
        """Give the values.  Local."""
        return np.asarray(values, np.int64)

    def gather(self, values: Sequence[int] | Numbers | Bytes) -> NDArray[np.generic]:
        """Give the values, shape (1, count).  Local."""
        return np.asarray(values)[None]

    def together(self, operation: str, problem: BaseException | None) -> None:
        """Raise a problem, as it is.  Local."""
        del operation
        if problem is not None:
            raise problem

    def taken(self, operation: str, step: Callable[[], _T]) -> _T:
        """Take a step.  Local."""
        del operation
        return step()

    def everything(self, mine: object) -> list[Any]:
        """Give this rank's value.  Local."""
        return [mine]

    def across(self, values: Sequence[int] | Numbers) -> Numbers:
        """Give the values.  Local."""
        return np.asarray(values, np.int64)

    def move(
        self, sends: Sequence[tuple[int, Bytes]], receives: Sequence[tuple[int, Bytes]]
    ) -> Callable[[], None]:
        """Move nothing: all that there is lies here.  Local."""
        assert not sends and not receives  # noqa: PT018 - of one piece
        return lambda: None

    def close(self) -> None:
        """Free nothing.  Local."""
