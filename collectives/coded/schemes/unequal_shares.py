"""Unequal shares: workers that are slow for good get fewer parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.comms import argument
from closeranks.errors import UsageError

#: The fewest parts are taken whose round is at most so much longer than the best.
_TOLERANCE = 0.03
#: The fastest worker gets at most so many parts.
_MOST = 16
#: Quotients of speeds that are further apart would overflow.
_WIDEST = 1e200


class UnequalShares(OneTask):
    """Whole parts in proportion to speeds; a round waits for all.

    The number of parts is the smallest with which a round takes at most 3 %
    longer than with shares exactly in proportion; if no worker may have more
    than 16 parts for that, it is the best of those numbers.

    Parameters
    ----------
    n : int
        Workers.
    speeds : sequence of float
        Worker -> parts that it computes in a unit of time.  A worker with a
        positive speed gets a part or more, one with speed 0 gets none.

    Attributes
    ----------
    shares : tuple of int
        Worker -> how many parts it has.

    Raises
    ------
    UsageError
        If n < 1, there are not n speeds, one is negative or not finite, all are
        0, or positive ones differ by more than a factor of 1e200.
    """

    def __init__(self, n: int, speeds: Sequence[float]) -> None:
        n = argument.whole("UnequalShares", "n", n, least=1)
        self.shares = tuple(_shares(_speeds(n, speeds)).tolist())
        ends = np.cumsum(self.shares).tolist()
        mine = [tuple(range(end - k, end)) for k, end in zip(self.shares, ends, strict=True)]
        self._use([(parts, (1.0,) * len(parts)) for parts in mine], ends[-1])

    def _weights(self, finished: frozenset[int]) -> Sequence[float] | None:
        return [1.0] * self.n if self._enough(finished) else None

    def _enough(self, finished: frozenset[int]) -> bool:
        return finished >= self._busy


def _speeds(n: int, speeds: Sequence[float]) -> NDArray[np.float64]:
    """Read n speeds."""
    given: list[object] = list(speeds) if np.ndim(speeds) == 1 else []
    if len(given) != n:
        problem = f"speeds is {argument.shown(speeds)}"
        raise UsageError("UnequalShares", problem, f"give {n} numbers")
    one: object  # whatever its type says
    for worker, one in enumerate(given):
        if not isinstance(one, Real) or not 0 <= float(one) < math.inf:
            problem = f"the speed of worker {worker} is {argument.shown(one)}"
            raise UsageError("UnequalShares", problem, "give a finite number, 0 or above")
    if not any(given):
        raise UsageError("UnequalShares", "all speeds are 0", "let one of them be positive")
    found = np.array(given, np.float64)
    slowest, fastest = found[found > 0].min(), found.max()
    if slowest < fastest / _WIDEST:
        problem = f"speeds are from {slowest:g} to {fastest:g}"
        remedy = f"give speeds within a factor of {_WIDEST:g}, or 0"
        raise UsageError("UnequalShares", problem, remedy)
    return found


def _shares(speeds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Choose how many parts each worker gets.

    With a time t for a round, worker i gets ``floor(t * speeds[i])`` parts, but
    1 at least.  Only those t matter at which a worker gets one more.
    """
    there = speeds > 0
    speed = speeds[there] / speeds.max()
    times = np.unique(np.arange(1, _MOST + 1) / np.unique(speed)[:, None])
    best, least = np.ones(len(speed)), math.inf
    for time in times[times <= _MOST]:
        # The margin: 3 / 0.6 * 0.6 is below 3 in some cases.
        whole = np.maximum(1, np.floor(time * speed * (1 + 1e-12)))
        longer = float((whole / speed).max() * speed.sum() / whole.sum())
        if longer < least:
            best, least = whole, longer
        if longer <= 1 + _TOLERANCE:
            break
    shares = np.zeros(len(speeds), np.int64)
    shares[there] = best
    return shares
