"""Where the leaves of a state go: into the memory of the old ones where they can.

Several old leaves may lie in one memory: an array in several places, or views
of it.  What is to be there may be alike, or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from closeranks.collectives.replicated.leaf_bytes import Entry, Leaf, entry_of, from_bytes, to_bytes

#: Steps in which arrays whose bounds overlap are found to be apart; else they count as one.
_WORK: Final[Any] = 10_000


class Placing:
    """Leaves that stay, and those that come.

    Local.

    Parameters
    ----------
    held : mapping of str to object
        Path -> leaf, as it is.
    wanted : mapping of str to Entry
        Path -> leaf, as it is to be.
    unlike : collection of str
        Paths of what comes.
    """

    def __init__(
        self, held: Mapping[str, Leaf], wanted: Mapping[str, Entry], unlike: Collection[str]
    ) -> None:
        self._held, self._wanted = held, wanted
        self._spans = _spans(held)
        self._right: defaultdict[int, list[_Span]] = defaultdict(list)
        for path in wanted:
            if path not in unlike:
                self._note(path)

    def put(self, path: str, data: NDArray[np.uint8]) -> Leaf:
        """Make a leaf that has come.

        Parameters
        ----------
        path : str
            Which.
        data : ndarray of uint8
            As `to_bytes` gives them.

        Returns
        -------
        object
            The old one with new contents, unless that would change another one that
            is as it is to be; then, or where it does not fit, something new.
        """
        entry, old = self._wanted[path], self._held.get(path)
        is_shared = any(self._right[span.run] for span in self._spans[path])
        if is_shared and entry_of(old) == entry:  # came with another one already
            new = old
        else:
            new = self._made(entry, data, old, self._others(path) if is_shared else ())
        if new is old:
            self._note(path)
        return new

    def _made(
        self, entry: Entry, data: NDArray[np.uint8], old: Leaf, others: Collection[str]
    ) -> Leaf:
        """Make a leaf in the memory of the old one, or elsewhere if it cannot lie there."""
        is_folded = any(map(_may_be_folded, _memory(old)))
        if not (others or is_folded):
            return from_bytes(entry, data, old)
        was, kept = entry_of(old), to_bytes(old).copy()
        new = from_bytes(entry, data, old)
        is_there = not is_folded or entry_of(new) == entry
        if new is not old or (is_there and all(map(self._is_right, others))):
            return new
        from_bytes(was, kept, old)
        return from_bytes(entry, data, None)

    def _note(self, path: str) -> None:
        """Note that the memory of a leaf holds what it is to hold."""
        for span in self._spans[path]:
            self._right[span.run].append(span)

    def _is_right(self, path: str) -> bool:
        return entry_of(self._held[path]) == self._wanted[path]

    def _others(self, path: str) -> tuple[str, ...]:
        """Give the leaves that are right and have memory in common with this one."""
        found = {other.path: None for span in self._spans[path] for other in self._right[span.run]
                 if other.low < span.high and span.low < other.high
                 and np.may_share_memory(span.memory, other.memory, _WORK)}  # fmt: skip
        return tuple(found)


class _Span(NamedTuple):
    """Memory of an array, or of its mask.

    Attributes
    ----------
    run : int
        Whose are not equal are apart.
    low, high : int
        Its addresses.
    path : str
        Of the leaf.
    memory : ndarray
        What lies there.
    """

    run: int
    low: int
    high: int
    path: str
    memory: NDArray[Any]


def _spans(held: Mapping[str, Leaf]) -> defaultdict[str, list[_Span]]:
    """Tell where the leaves lie."""
    found = [_Span(0, *byte_bounds(part), path, part)
             for path, leaf in held.items() for part in _memory(leaf)]  # fmt: skip
    spans: defaultdict[str, list[_Span]] = defaultdict(list)
    run = end = 0
    for span in sorted(found, key=lambda span: span.low):
        run += span.low >= end
        end = max(end, span.high)
        spans[span.path].append(span._replace(run=run))
    return spans


def _may_be_folded(memory: NDArray[Any]) -> bool:
    """Tell whether two elements of an array may lie in one place.  False is certain."""
    reach = memory.itemsize
    for step, length in sorted(zip(map(abs, memory.strides), memory.shape, strict=True)):
        if length > 1 and step < reach:
            return True
        reach += step * (length - 1)
    return False


def _memory(leaf: Leaf) -> Iterator[NDArray[Any]]:
    """Give the arrays that hold the bytes of an array, its mask too."""
    if isinstance(leaf, np.ndarray):
        for part in (np.ma.getdata(leaf), np.ma.getmask(leaf)):
            if isinstance(part, np.ndarray) and part.nbytes:
                yield part
