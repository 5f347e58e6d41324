"""A round of a group whose workers help each other, event by event."""

from __future__ import annotations

import heapq
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.schemes.work_sharing import next_micro_batch

Times = NDArray[np.float64]
#: Micro-batches that end within this share of a piece end at once.
_TOGETHER: Final = 1e-9


def group_round(starts: list[float], pieces: list[float], micro: int, grace_s: float
                ) -> tuple[float, list[float]]:  # fmt: skip
    """Follow the workers of a group until all their micro-batches are done.

    Local and pure.  Each does its own share from the front.  A worker that has
    nothing left waits for ``grace_s``, then helps: `next_micro_batch` says with
    what.  A micro-batch counts when its first computation ends, and who computes
    the same one goes on until its end.

    Parameters
    ----------
    starts : list of float
        Member -> when it begins.
    pieces : list of float
        Member -> seconds of a micro-batch.
    micro : int
        Micro-batches of a share.
    grace_s : float
        Seconds from the end of the own work to helping.

    Returns
    -------
    end : float
        When the last micro-batch is done.
    free : list of float
        Member -> when its last micro-batch ends, perhaps after that.
    """
    own = [start + micro * piece for start, piece in zip(starts, pieces, strict=True)]
    helped = min(own) + grace_s  # nobody helps before
    if max(own) <= helped:
        return max(own), own
    return _Group(starts, pieces, micro, grace_s).run(helped)


class _Group:
    """The micro-batches of a group: done, taken, and under way."""

    def __init__(self, starts: list[float], pieces: list[float], micro: int, grace_s: float
                 ) -> None:  # fmt: skip
        self._starts, self._pieces, self._micro, self._grace = starts, pieces, micro, grace_s
        self._all, self._together = (1 << micro) - 1, _TOGETHER * min(pieces)
        size = len(starts)
        self._done, self._taken = [0] * size, [0] * size
        self._left = size * micro
        self._free = list(starts)
        self._helps_from: list[float | None] = [None] * size
        self._under_way: list[tuple[int, int] | None] = [None] * size
        self._events: list[tuple[float, int]] = []

    def run(self, helped: float) -> tuple[float, list[float]]:
        """Begin at a time up to which all have done their own, and follow on."""
        for member, (start, piece) in enumerate(zip(self._starts, self._pieces, strict=True)):
            count = math.floor((helped - start) / piece) if helped > start else 0
            if count > 0 and start + count * piece >= helped - self._together:
                count -= 1  # its end is an event as all others
            count = min(count, self._micro - 1)
            self._done[member] = (1 << count) - 1
            self._left -= count
            self._free[member] = start + count * piece
            heapq.heappush(self._events, (self._free[member], member))
        while self._left:
            time, first = heapq.heappop(self._events)
            members = [first]
            while self._events and self._events[0][0] <= time + self._together:
                members.append(heapq.heappop(self._events)[1])
            for member in members:
                self._finish(member)
            if not self._left:
                # Whoever waits to begin, or to help, has nothing to do.
                return time, self._free
            for member in sorted(members):
                self._choose(member, time)
        raise AssertionError("no micro-batch is left, and no event ended the last one")

    def _finish(self, member: int) -> None:
        """End what a member computes."""
        work, self._under_way[member] = self._under_way[member], None
        if work is not None:
            whose, bit = work[0], 1 << work[1]
            if not self._done[whose] & bit:
                self._done[whose] |= bit
                self._left -= 1

    def _choose(self, member: int, time: float) -> None:
        """Let a member begin its next micro-batch, or wait."""
        since = self._helps_from[member]
        helps = since is not None and time >= since - self._together
        work = next_micro_batch(member, self._done, self._taken, self._micro, helps=helps)
        if work is None and since is None and not helps:
            self._helps_from[member] = time + self._grace
            heapq.heappush(self._events, (time + self._grace, member))
            return
        if work is None:
            return
        if work[0] != member:
            self._taken[work[0]] |= 1 << work[1]
        self._under_way[member] = work
        self._free[member] = time + self._pieces[member]
        heapq.heappush(self._events, (self._free[member], member))
