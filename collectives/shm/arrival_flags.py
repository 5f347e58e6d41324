"""Who has arrived, in memory: what ranks of a node know of each other unasked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A rank's part; others do not write into the same line of a processor's cache.
LINE_BYTES: Final = 64


class Arrivals:
    """Which collectives the ranks of a node are in, written by each as it goes.

    So who computes, and cannot answer, is known to have left a collective.

    Parameters
    ----------
    memory : ndarray of uint8
        `LINE_BYTES` for each rank of the node, zeros at first; shared.
    mine : int
        Whose line this rank writes.
    ranks : tuple of int
        Rank in the node -> rank.
    """

    def __init__(self, memory: NDArray[np.uint8], mine: int, ranks: tuple[int, ...]) -> None:
        self._ranks, self._first = ranks, memory.view(np.int64)[:: LINE_BYTES // 8]
        self._mine = memory[mine * LINE_BYTES :].data.cast("q")

    def write(self, within: int) -> None:
        """Say that all collectives before that one are over here.  Local."""
        self._mine[0] = within

    def read(self) -> dict[int, int]:
        """Give the first collective that each rank is in, or enters next.  Local."""
        return dict(zip(self._ranks, self._first.tolist(), strict=True))
