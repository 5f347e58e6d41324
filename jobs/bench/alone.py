"""The library alone with one of its settings: a launch of ``--vs best``."""

from __future__ import annotations

import math

from closeranks.jobs.bench.best import Key, Result
from closeranks.jobs.bench.collective import Collective
from closeranks.jobs.bench.measure import estimate
from closeranks.jobs.bench.schedule import SHORT_S
from closeranks.jobs.bench.session import Session
from closeranks.jobs.bench.settings import settings
from closeranks.jobs.bench.sides import make_case, time_sides

_HOPELESS, _COSTLY_S = 1.3, 20e-3
"""A setting this much slower than the best so far is not measured further,
where a call takes so long that its first calls tell enough."""
_BATCHED_UP_TO_S = 5 * SHORT_S
"""The main launch may time this size in batches, whatever this setting needs."""


def measure_setting(
    session: Session, collective: Collective, nbytes: int, launch: int
) -> list[Result]:
    """Measure the library alone, in a launch with one of its settings.

    Stops after a first estimate where an earlier launch was clearly faster.

    Parameters
    ----------
    session : Session
        Where; its `best` holds the earlier launches' results.
    collective : Collective
        The operation.
    nbytes : int
        Size asked for.
    launch : int
        Number of the launch.

    Returns
    -------
    list of Result
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
    results = []
    for batched in (True, False) if guess < _BATCHED_UP_TO_S else (False,):
        key = Key(collective.name, request.dtype, op, case.size_bytes, batched)
        fastest = session.best.get(key)
        p50_us = guess * 1e6
        limit_us = math.inf if fastest is None else _HOPELESS * fastest.p50_us
        if guess < _COSTLY_S or p50_us < limit_us:
            p50_us = time_sides(session, {"native": call}, case.size_bytes, guess, batched)[
                "native"
            ].p50_us
        results.append(Result(key, p50_us, known[launch].label))
    return results
