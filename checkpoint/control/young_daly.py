"""How often to save: so that saves and failures together cost least."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, overload

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
        Seconds that the program stands still for a save; what goes on in the
        background costs nothing but later failures.
    mtbf_s : float
        Mean seconds between failures that such a save mends, of the whole job.
    levels : sequence of (float, float), optional
        The same of dearer saves, each of which mends what those before do not.

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
