"""Known sizes: which calls are the library's, and which a kernel's.

What is known stands in two places: here, until too many others have come, and
in a table that machine code reads, where a size has one row and the last to
come takes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.fastpath.shortcut_layout import ROW, SLOTS, slot_of

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import Key
    from closeranks.collectives.fastpath.shm_call import Near

#: So many sizes are known; the first to come is the first to go.
MOST_SIZES: Final = 1024
#: So many kinds of calls of one size may be kernels'.
_MOST_KINDS: Final = 8


@dataclass
class _Size:
    """What is known of one size; ``nears`` by the key of the calls they run."""

    library: bool = False
    nears: dict[Key, Near] = field(default_factory=dict)

    @property
    def entry(self) -> int:
        """Address of the first kernel, 0 where the library does it."""
        return next((near.address for near in self.nears.values()), 0)


class KnownSizes:
    """What one communicator knows of one operation.

    All its ranks learn the same in the same order.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._table: NDArray[np.int64] | None = None
        self._open = False
        self._past: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def is_library(self, nbytes: int | None) -> bool:
        """Tell whether calls of a size are the library's.  Local."""
        return nbytes is not None and nbytes in self._sizes and self._sizes[nbytes].library

    def learn(self, nbytes: int) -> None:
        """Note that calls of a size are the library's.  Local."""
        self._size(nbytes).library = True
        self._write(nbytes)

    def learn_near(self, nbytes: int, near: Near) -> None:
        """Note that calls of a size, of the kind of ``near``, are a kernel's.  Local."""
        nears = self._size(nbytes).nears
        if near.key not in nears and len(nears) < _MOST_KINDS:
            for last in list(nears.values())[-1:]:
                last.followed_by(near)
            nears[near.key] = near
        self._write(nbytes)

    def open(self) -> NDArray[np.int64]:
        """Fill the table and return it, to be read from now on.  Local."""
        if self._table is None:
            self._table = empty_table()
        self._open = True
        for nbytes in self._sizes:
            self._write(nbytes)
        return self._table

    def shut(self) -> None:
        """Empty the table: who reads it finds nothing.  Local."""
        self._open = False
        if self._table is not None:
            self._past["native"] += int(self._table[:, 1].sum())
            self._table[:] = empty_table()

    def calls(self) -> Counter[str]:
        """Count the calls that machine code has served, by algorithm.  Local."""
        found = self._past.copy()
        if self._table is not None:
            found["native"] += int(self._table[:, 1].sum())
        found["shared"] += sum(map(_calls, self._sizes.values()))
        return found

    def _size(self, nbytes: int) -> _Size:
        """Give what is known of a size; the oldest one makes way for a new one."""
        if nbytes not in self._sizes:
            if len(self._sizes) == MOST_SIZES:
                self._forget(next(iter(self._sizes)))
            self._sizes[nbytes] = _Size()
        return self._sizes[nbytes]

    def _forget(self, nbytes: int) -> None:
        """Know nothing of a size any more."""
        known = self._sizes.pop(nbytes)
        self._past["shared"] += _calls(known)
        for near in known.nears.values():
            near.followed_by(None)  # it may be learned again, in another order
        if self._open:
            row = self._row(nbytes)
            if row[0] == nbytes:
                self._past["native"] += int(row[1])
                row[:] = -1, 0, 0

    def _write(self, nbytes: int) -> None:
        """Let readers of the table know a size."""
        if not self._open:
            return
        row, entry = self._row(nbytes), self._sizes[nbytes].entry
        if row[0] == nbytes:
            row[2] = entry
            return
        self._past["native"] += int(row[1])  # what stood there goes the long way, and comes back
        row[:] = nbytes, 0, entry

    def _row(self, nbytes: int) -> NDArray[np.int64]:
        """Give the only row where a size may stand."""
        assert self._table is not None
        return row_of(self._table, nbytes)


def _calls(known: _Size) -> int:
    return sum(near.calls for near in known.nears.values())


def row_of(table: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
    """Give the only row of a table where a size may stand."""
    row: NDArray[np.int64] = table[slot_of(nbytes)]
    return row


def empty_table() -> NDArray[np.int64]:
    """Make a table of no sizes."""
    return np.full((SLOTS, ROW), (-1, 0, 0), np.int64)
