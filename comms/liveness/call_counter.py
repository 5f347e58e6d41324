"""Counters: collective calls that a rank has begun, and calls under way."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import TracebackType

import numpy as np


class PendingCalls:
    """Calls of the MPI library, made by this package, that are under way.

    A context manager around such a call; may be nested, and used by any thread.

    Attributes
    ----------
    word : ndarray of int64, shape (1,)
        How many of them machine code has made, which counts here itself.
    begin, end : callable
        Do what the context manager does, without a call of Python.
    """

    def __init__(self) -> None:
        self.word = np.zeros(1, np.int64)
        self._word = self.word.data
        self._under_way: deque[None] = deque()  # a count would lose some where threads meet
        self.begin = partial(self._under_way.append, None)
        self.end = self._under_way.pop

    def __enter__(self) -> None:
        self._under_way.append(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._under_way.pop()

    def __bool__(self) -> bool:
        return bool(self._under_way) or self._word[0] != 0


class CallCounter:
    """Collective calls of a communicator, and the calls that this rank has refused.

    Every call counts, refused or not.  All ranks make them in the same order, so a
    number names the same call on all ranks.

    Parameters
    ----------
    key : str
        Names the communicator: equal on its ranks, unique in the family.

    Attributes
    ----------
    key : str
        As given.
    word : ndarray of int64, shape (1,)
        How many calls have begun; machine code counts here too.
    count : memoryview
        The same memory, as a program in Python reads and writes it fastest.
    refused : set of int
        Numbers of the calls that this rank has refused.
    reading : PendingCalls
        Calls of which the arguments are being read: they may still be refused.
    """

    __slots__ = ("__weakref__", "count", "key", "reading", "refused", "word")

    def __init__(self, key: str) -> None:
        self.key, self.refused, self.reading = key, set[int](), PendingCalls()
        self.word = np.zeros(1, np.int64)
        self.count = self.word.data

    @property
    def begun(self) -> int:
        """How many have begun."""
        begun: int = self.count[0]
        return begun

    def begin(self) -> int:
        """Count a call; gives its number.  Local."""
        number: int = self.count[0]
        self.count[0] = number + 1
        return number
