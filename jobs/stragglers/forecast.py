"""What a trace shows, what schemes would take, and advice in a sentence."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.prediction.block_means import mean_interval
from closeranks.collectives.coded.prediction.candidates import (
    DEFAULT_MICRO,
    SchemeCandidate,
    candidates,
    per_round,
)
from closeranks.collectives.coded.prediction.tuning import LEAST_GAIN, choose
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares
from closeranks.collectives.coded.schemes.work_sharing import MOST_MICRO
from closeranks.collectives.coded.stragglers.bursty import Bursty
from closeranks.collectives.coded.stragglers.slow_ranks import (
    SlowRanks,
    burst_lengths,
    fit_bursty,
    slow_ranks,
)
from closeranks.collectives.coded.stragglers.trace import Trace
from closeranks.collectives.coded.stragglers.trace_file import bad_trace

Row = dict[str, Any]
#: Fewer rounds tell nothing.
LEAST_ROUNDS: Final = 8
#: Share of a forecast by which it may be wrong, for what a simulation leaves out.
_MODEL_ERROR: Final = 0.1
#: Ranks that a sentence names.
_NAMED: Final = 4


class Forecast(NamedTuple):
    """What is known of a trace.

    Attributes
    ----------
    trace : Trace
        The trace, of a run without a code.
    factors : ndarray, shape (rounds, n)
        How slow its ranks were.
    ranks : SlowRanks
        Which ones were slow.
    bursts : dict of int to int
        Rounds that follow each other -> bursts so long.
    bursty : Bursty
        The model that fits most windows.
    rows : list of dict
        A scheme each, fastest first: ``scheme seconds low_s high_s speedup
        memory exact delay chosen advice``, and what is known of the trace.
    advice : str
        What to do.
    """

    trace: Trace
    factors: NDArray[np.float64]
    ranks: SlowRanks
    bursts: dict[int, int]
    bursty: Bursty
    rows: list[Row]
    advice: str


def forecast(trace: Trace) -> Forecast:
    """Predict seconds a round of each scheme, on the schedule of a trace.

    Local and pure.  The trace is of a run in which each rank has computed
    ``1 / n`` of the batch in each round.

    Parameters
    ----------
    trace : Trace
        The trace.

    Returns
    -------
    Forecast
        Rows and advice.  The interval of seconds is for 95 % of series of such
        rounds, and 10 % wider for what a simulation leaves out.

    Raises
    ------
    UsageError
        If it has fewer than 8 rounds.
    """
    if trace.rounds < LEAST_ROUNDS:
        raise bad_trace(
            trace.path, f"it is short: {trace.rounds} rounds, at least {LEAST_ROUNDS} are needed"
        )
    factors = trace.factors(trace.rounds, trace.n)
    micro = min(trace.micro or DEFAULT_MICRO, MOST_MICRO)
    found = candidates(factors, micro=micro, exact=False, memory=None, delay=0)
    times = [per_round(one, factors, 0, trace.n * trace.usual_s) for one in found]
    times = [time + trace.overhead_s for time in times]
    exact = [i for i, one in enumerate(found) if one.scheme.exact]
    number, _ = choose([found[i] for i in exact], [times[i] for i in exact])
    idle = tuple(np.flatnonzero(np.median(trace.compute_s, axis=0) == 0).tolist())
    chosen = 0 if idle else exact[number]
    ranks = slow_ranks(factors)
    bursty = fit_bursty(ranks.late)
    advice = _advice(found[chosen], float(times[0].mean() / times[chosen].mean()), ranks)
    if idle:  # a rank that has no work seems to be as fast as can be
        remedy = "record a run in which each rank computes its share"
        advice = f"Idle: {named(idle)} without work in most rounds; {remedy}."
    known = {
        "advice": advice,
        "ranks": trace.n,
        "rounds": trace.rounds,
        "chronic": ",".join(map(str, ranks.chronic)),
        "bursty": ",".join(map(str, ranks.bursty)),
        "late_share": float(ranks.late.mean()),
        "B": bursty.B,
        "W": bursty.W,
        "lam": bursty.lam,
    }
    rows = [
        {**_row(one, time, times[0]), "chosen": i == chosen, **known}
        for i, (one, time) in enumerate(zip(found, times, strict=True))
    ]
    rows.sort(key=lambda row: float(row["seconds"]))
    return Forecast(trace, factors, ranks, burst_lengths(ranks.late), bursty, rows, advice)


def _row(one: SchemeCandidate, time: NDArray[np.float64], uncoded: NDArray[np.float64]) -> Row:
    """Describe a scheme."""
    mean = float(time.mean())
    low, high = mean_interval(time)
    return {
        "scheme": one.name,
        "seconds": mean,
        "low_s": mean - math.hypot(max(0.0, mean - low), _MODEL_ERROR * mean),
        "high_s": mean + math.hypot(max(0.0, high - mean), _MODEL_ERROR * mean),
        "speedup": float(uncoded.mean()) / mean,
        "memory": float(one.memory),
        "exact": one.scheme.exact,
        "delay": one.scheme.delay,
    }


def _advice(chosen: SchemeCandidate, speedup: float, ranks: SlowRanks) -> str:
    """Say what to do."""
    gain = f"{speedup:.2g}x as fast" if speedup >= 1.1 else f"{speedup:.2f}x as fast"
    slow = named(ranks.chronic)
    if isinstance(chosen.scheme, Uncoded):
        most = f"no scheme would surely save {LEAST_GAIN:.0%} of a round"
        return f"Calm: {most}, so keep the uncoded sum."
    if isinstance(chosen.scheme, UnequalShares):
        shown = ranks.chronic[:_NAMED]
        times = ", ".join(f"{ranks.usual[rank]:.2g}x" for rank in shown)
        speeds = ", ".join(f"{1 / ranks.usual[rank]:.2g}" for rank in shown)
        said = f"Chronic: {slow} slow for good ({times}); repair that, or give less work"
        return f"{said} by {chosen.name} with {speeds} there and 1 elsewhere, {gain}."
    if not ranks.bursty:
        said = f"Uneven: no rank is slow at times, but they differ; {chosen.name} would be {gain}"
    else:
        said = f"Bursty: {named(ranks.bursty)} slow at times; {chosen.name} would be {gain}"
    if ranks.chronic:
        return f"{said}, but {slow} slow for good: repair that, or give less work, first."
    return f"{said}."


def named(ranks: tuple[int, ...]) -> str:
    """Name ranks, and say that they are: ``rank 3 is``, ``ranks 1, 2 are``.

    Local and pure.

    Parameters
    ----------
    ranks : tuple of int
        The ranks, at least one.

    Returns
    -------
    str
        The first of them, and how many there are.
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more} are"
