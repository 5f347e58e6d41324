"""How often to save, and whether a call saves: the same on all ranks.

`interval` gives the time between saves at which saves and failures together
cost least.  `Cadence` tells when the next save is due.

Ranks compare no clocks: each measures the time since its last save.  At some
calls the ranks exchange their times.  From the same numbers all derive how
many of the next calls need no exchange: half of the calls until the save at
the pace so far, and no more than there have been.  A thousand calls between
two saves are about 20 messages.  A save comes late only by as much as later
calls take longer than earlier ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import median
from typing import Any, Final, Literal, overload

from numpy.typing import NDArray

from closeranks.comms.numeric_argument import real, shown
from closeranks.errors import UsageError


@overload
def interval(cost_s: float, mtbf_s: float) -> float: ...


@overload
def interval(
    cost_s: float, mtbf_s: float, levels: Sequence[tuple[float, float]]
) -> tuple[float, ...]: ...


def interval(
    cost_s: float, mtbf_s: float, levels: Sequence[tuple[float, float]] | None = None
) -> float | tuple[float, ...]:
    """Give the time between two saves that loses least.

    Local.

    Parameters
    ----------
    cost_s : float
        Seconds that the program stands still for a save; the background part
        costs nothing but later failures.
    mtbf_s : float
        Mean seconds between failures that such a save mends, of the whole job.
    levels : sequence of (float, float), optional
        The same of dearer saves, each for failures that the ones before do not
        cover.

    Returns
    -------
    float or tuple of float
        Seconds from the end of one save to the start of the next: J. T. Daly,
        Future Generation Computer Systems 22 (2006), eq. 37, which for short saves
        is J. W. Young's sqrt(2 cost mtbf) of 1974.  With levels one for each, all
        but the first whole multiples of the one before: a dear save is a cheap one
        as well.

    Raises
    ------
    UsageError
        If a cost or a time is not positive.

    Examples
    --------
    >>> round(interval(cost_s=0.5, mtbf_s=4 * 3600))
    120
    >>> [round(time_s) for time_s in interval(0.5, 4 * 3600, [(60.0, 7 * 86400)])]
    [120, 8511]
    """
    cost_s, mtbf_s = _checked(cost_s, mtbf_s)
    first = _daly_s(cost_s, mtbf_s)
    if levels is None:
        return first
    times = [first]
    for cost, mtbf in _pairs(levels):
        times.append(times[-1] * max(1, round(_daly_s(cost, mtbf) / times[-1])))
    return tuple(times)


def _daly_s(cost_s: float, mtbf_s: float) -> float:
    """Give Daly's time."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    share = cost_s / (2 * mtbf_s)
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(share) / 3 + share / 9) - cost_s


def _checked(cost: Any, mtbf: Any) -> tuple[float, float]:
    """Check two times."""
    found = real(cost), real(mtbf)
    if found[0] is None or found[1] is None or min(found[0], found[1]) <= 0:
        problem = f"a save of {shown(cost)} s where failures are {shown(mtbf)} s apart"
        raise UsageError("interval", problem, "give positive seconds")
    return found[0], found[1]


def _pairs(levels: Any) -> list[tuple[float, float]]:
    """Check the times of all levels."""
    try:
        pairs = [(cost, mtbf) for cost, mtbf in levels]
    except (TypeError, ValueError):
        problem, remedy = f"levels={shown(levels)}", "give pairs: cost and time between failures"
        raise UsageError("interval", problem, remedy) from None
    return [_checked(*pair) for pair in pairs]


#: Saves whose cost counts: the first one pays for the pages of the slots.
_MEASURED: Final = 5
#: Of a save that cost nothing that a clock shows.
_LEAST_COST_S: Final = 1e-6
_SECOND: Final = 1_000_000_000
#: Nanoseconds, more than any; a century.
_NEVER: Final = 100 * 366 * 86400 * _SECOND


class Cadence:
    """Tells whether a call of ``save`` is to save.

    Parameters
    ----------
    interval : float, "auto" or None
        Seconds from the end of one save to the start of the next; ``"auto"`` for
        what `closeranks.checkpoint.interval` makes of the measured cost; None for
        a save at every call.
    mtbf_s : float or None
        Mean seconds between failures of the job, for ``"auto"``.
    clock : callable
        Gives seconds.

    Raises
    ------
    UsageError
        If they are none of these (local).
    """

    def __init__(
        self,
        interval: float | Literal["auto"] | None,
        mtbf_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_auto = isinstance(interval, str) and interval == "auto"
        if isinstance(interval, str) and not is_auto:
            raise UsageError("Checkpointer", f"interval={interval!r}", "seconds, 'auto' or None")
        if is_auto != (mtbf_s is not None):
            problem = f"interval={shown(interval)} with mtbf_s={shown(mtbf_s)}"
            raise UsageError("Checkpointer", problem, "'auto' needs it, and nothing else does")
        self._interval: float | Literal["auto"] | None = "auto"
        if not isinstance(interval, str):
            self._interval = _seconds("interval", interval)
        self._mtbf_s, self._clock = _seconds("mtbf_s", mtbf_s), clock
        self._costs: deque[float] = deque(maxlen=_MEASURED)
        self.restart()

    def restart(self) -> None:
        """Begin anew, with all ranks: the next call is to save.  Local."""
        self._calls = self._silent = 0
        self._begun = 0.0
        self._ended: float | None = None

    def is_due(
        self,
        agree: Callable[[Sequence[int]], NDArray[Any]],
        *,
        now: bool = False,
        has_failed: bool = False,
    ) -> bool:
        """Decide about a call.

        Collective, mostly without a word.

        Parameters
        ----------
        agree : callable
            Gives the least of each number over all ranks; collective.
        now : bool
            Whether it is to save in any case; the same on all ranks.
        has_failed : bool
            Whether the save before is known to have failed here.

        Returns
        -------
        bool
            The same on all ranks.
        """
        if self._interval is None:
            return True
        self._calls += 1
        if self._silent and not now:
            self._silent -= 1
            return False
        begun = self._clock()
        if not now and not self._ask(agree, begun, has_failed):
            return False
        # From here on ranks may fare differently; so the next call is not silent.
        self._calls = self._silent = 0
        self._begun = begun
        return True

    def note(self) -> None:
        """Note that the save has given its arrays back to this rank.  Local."""
        self._ended = self._clock()
        self._costs.append(max(_LEAST_COST_S, self._ended - self._begun))

    def _ask(
        self, agree: Callable[[Sequence[int]], NDArray[Any]], time_s: float, has_failed: bool
    ) -> bool:
        """Exchange times: the shortest time and the dearest save count."""
        is_well = self._ended is not None and not has_failed
        passed = max(1, int((time_s - (self._ended or 0.0)) * _SECOND)) if is_well else 1
        said = agree([passed, -self._wanted(), is_well])
        passed, wanted = int(said[0]), -int(said[1])
        if passed >= wanted or said[2] != 1:
            return True
        left = self._calls * (wanted - passed) // passed
        self._silent = max(0, min(self._calls, left // 2 - 1))
        return False

    def _wanted(self) -> int:
        """Give the nanoseconds between two saves, as far as this rank knows."""
        seconds = self._interval
        if isinstance(seconds, str):
            mtbf_s = self._mtbf_s or 0.0
            seconds = interval(median(self._costs), mtbf_s) if self._costs else 0.0
        return int((seconds or 0.0) * _SECOND)


def _seconds(name: str, value: float | None) -> float | None:
    """Check a time; None stays."""
    found = None if value is None else real(value)
    if value is not None and (found is None or not 0 < found * _SECOND < _NEVER):
        problem = f"{name}={shown(value)}"
        raise UsageError("Checkpointer", problem, "give positive seconds, below a century")
    return found
