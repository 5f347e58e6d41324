"""The library with a setting, and ours in turn: a launch of ``--vs best``."""

from __future__ import annotations

import math
from collections.abc import Callable

from closeranks.jobs.bench.measuring.best_settings import SettingsKey, SettingsResult, settings
from closeranks.jobs.bench.measuring.collective_facts import Collective
from closeranks.jobs.bench.measuring.comparison import make_case, settle, time_sides
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import SHORT_S, estimate

_PAIRED_UP_TO_S = 60e-3
"""Longer calls wait for a wire, which does not change from launch to launch as
memory does; and our trials with them would take minutes in every launch."""
_HOPELESS = 1.3
"""With such calls a setting this much slower than the best so far is not measured
further: its first calls tell enough."""
_BATCHED_UP_TO_S = 5 * SHORT_S
"""The main launch may time this size in batches, whatever this setting needs."""


def measure_setting(
    session: Session, collective: Collective, algorithm: str, nbytes: int, launch: int
) -> list[SettingsResult]:
    """Measure the library in a launch with one of its settings, and ours in turn.

    Stops after a first estimate where an earlier launch was clearly faster.

    Parameters
    ----------
    session : Session
        Where; its `best` holds the earlier launches' results.
    collective : Collective
        The operation.
    algorithm : str
        Ours: what is passed as ``algorithm=``.
    nbytes : int
        Size asked for.
    launch : int
        Number of the launch.

    Returns
    -------
    list of SettingsResult
        One for each way of timing that the main launch may choose; empty if
        this launch has no setting for the operation.
    """
    known = settings(session.kind, collective.name)
    if launch >= len(known):
        return []
    request = session.request
    case = make_case(session, collective, nbytes)
    call = case.native(session.plain)
    op = request.op if collective.reduces else "none"
    guess = estimate(session.plain, call)
    sides: dict[str, Callable[[], object]] = {"native": call}
    if guess < _PAIRED_UP_TO_S:
        sides["ours"] = case.ours(algorithm)
        settle(session, collective, case, algorithm)
    results = []
    for batched in (True, False) if guess < _BATCHED_UP_TO_S else (False,):
        key = SettingsKey(collective.name, algorithm, request.dtype, op, case.size_bytes, batched)
        fastest = session.best.fastest(key)
        p50_us, ours_us = guess * 1e6, None
        limit_us = math.inf if fastest is None else _HOPELESS * fastest.p50_us
        if guess < _PAIRED_UP_TO_S or p50_us < limit_us:
            timings = time_sides(session, sides, case.size_bytes, guess, batched)
            p50_us = timings["native"].p50_us
            ours_us = timings["ours"].p50_us if "ours" in timings else None
        results.append(SettingsResult(key, p50_us, known[launch].label, ours_us))
    case.free()
    return results
