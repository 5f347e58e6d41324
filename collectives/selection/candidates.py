"""Which algorithms meet in a race."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from closeranks.collectives.builders.catalogue import find
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.findings import TrialFinding
from closeranks.collectives.selection.trial import Trial

#: At most so many plans are tried, none predicted slower than the best one, or than the
#: library by more; and, where kernels in node memory do part of it, those predicted slower
#: by no more.
MOST_TRIED: Final = 4
NEAR: Final = 1.2
KERNELS: Final = 4.0
#: Calls of each candidate by the predicted time of one: (seconds below, calls).
ROUNDS: Final = ((1e-3, 16), (5e-3, 8), (0.1, 4), (float("inf"), 1))


def first_race(
    operation: str, predictions: Mapping[str, float], *, allows_native: bool
) -> Trial | None:
    """Let the cheapest plans that are near each other, kernels, and the library meet.

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``.
    predictions : mapping of str to float
        Seconds by algorithm.
    allows_native : bool
        Whether the library is a candidate.

    Returns
    -------
    Trial or None
        None where there are no two candidates.
    """
    plans = sorted((n for n in predictions if n != NATIVE), key=lambda n: predictions[n])
    if not plans:
        return None
    least = predictions[plans[0]]
    tried = [
        name
        for name in plans
        if find(operation, name).kernels
        and (name == SHARED or predictions[name] <= KERNELS * least)
    ]
    limit_s = NEAR * least
    if allows_native:
        limit_s = min(limit_s, KERNELS * predictions.get(NATIVE, limit_s))
    tried += [
        name for name in plans[:MOST_TRIED] if predictions[name] <= limit_s and name not in tried
    ]
    if len(tried) + allows_native < 2:
        return None
    candidates = (*tried, NATIVE) if allows_native else (*tried[1:], tried[0])
    return Trial(candidates, rounds=_rounds(least))


def later_race(
    operation: str,
    predictions: Mapping[str, float],
    known: TrialFinding,
    *,
    allows_native: bool,
) -> Trial | None:
    """Let what others have found meet the library again, or the library a plan.

    Parameters
    ----------
    operation, predictions, allows_native
        As for `first_race`.
    known : TrialFinding
        What was found.

    Returns
    -------
    Trial or None
        As `first_race`.
    """
    trial = first_race(operation, predictions, allows_native=allows_native)
    if trial is None or not allows_native:
        return trial
    plan = trial.candidates[0] if known.algorithm == NATIVE else known.algorithm
    if plan not in predictions:
        return trial
    return Trial((plan, NATIVE), rounds=_rounds(known.seconds), looks=1)


def _rounds(seconds: float) -> int:
    return next(rounds for limit_s, rounds in ROUNDS if seconds < limit_s)
