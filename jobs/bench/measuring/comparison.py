"""Our time against the library's: as it is, and with its best setting.

The sides of a size - ours, the library's - are timed alike on the same
buffers. In the launches of ``--vs best`` the library has one of its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from closeranks.collectives.selection.trial import RACES
from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.best_settings import SettingsKey, SettingsResult, settings
from closeranks.jobs.bench.measuring.collective_facts import Collective, call_bytes, pattern
from closeranks.jobs.bench.measuring.collectives import Case
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import SHORT_S, Timing, clock, estimate

Row = dict[str, Any]

_PAIRED_UP_TO_S = 60e-3
"""Longer calls wait for a wire, which does not change from launch to launch as
memory does; and our trials with them would take minutes in every launch."""
_HOPELESS = 1.3
"""With such calls a setting this much slower than the best so far is not measured
further: its first calls tell enough."""
_BATCHED_UP_TO_S = 5 * SHORT_S
"""The main launch may time this size in batches, whatever this setting needs."""


def against_native(timings: dict[str, Timing]) -> Row:
    """Compare with the library as it is, and that with itself.

    Parameters
    ----------
    timings : dict of str to Timing
        Of the sides "ours", "native" and "again".

    Returns
    -------
    dict
        ``native_us_p50``, ``speedup`` and ``native_vs_native``.
    """
    native, again = timings["native"].p50_us, timings["again"].p50_us
    return {
        "native_us_p50": native,
        "speedup": native / timings["ours"].p50_us,
        "native_vs_native": native / again,
    }


def against_copy(timings: dict[str, Timing]) -> Row:
    """Compare with what NumPy takes to copy the result, all ranks at once.

    Parameters
    ----------
    timings : dict of str to Timing
        Of the sides "ours" and "copy".

    Returns
    -------
    dict
        ``copy_us_p50``, and ``over_copy``: how many times that we take.
    """
    copy = timings["copy"].p50_us
    return {"copy_us_p50": copy, "over_copy": timings["ours"].p50_us / copy}


def against_plain(timings: dict[str, Timing]) -> Row:
    """Compare a persistent operation with the library's blocking call.

    Parameters
    ----------
    timings : dict of str to Timing
        Of the sides "ours" and "plain".

    Returns
    -------
    dict
        ``plain_us_p50``, and ``speedup_plain`` over it.
    """
    plain = timings["plain"].p50_us
    return {"plain_us_p50": plain, "speedup_plain": plain / timings["ours"].p50_us}


def against_best(session: Session, row: Row) -> Row:
    """Compare with the setting of the library that we beat least.

    A machine changes between launches, so each setting met us in its own: the
    least of those speed-ups counts.

    Parameters
    ----------
    session : Session
        Holds the other launches' results.
    row : dict
        Measured here.

    Returns
    -------
    dict
        ``best_settings`` and ``speedup_best``, and ``best_us_p50``: what that
        setting takes where we take what we took here.  None where no launch
        measured this.
    """
    parts = ("name", "algorithm", "dtype", "op", "size_bytes", "batched")
    ours = row["time_us_p50"]
    result = session.best.hardest(SettingsKey(*(row[part] for part in parts)), ours)
    known = {} if result is None else {result.setting: result.speedup(ours)}
    if "speedup" in row:
        known["defaults"] = min(row["speedup"], known.get("defaults", math.inf))
    if not known:
        return {"best_us_p50": None, "best_settings": None, "speedup_best": None}
    label = min(known, key=known.__getitem__)
    return {
        "best_us_p50": known[label] * ours,
        "best_settings": label,
        "speedup_best": known[label],
    }


def check_comparable(collective: Collective, dtype: str, op: str) -> None:
    """Refuse a comparison with a reduction that the library does not have.

    Parameters
    ----------
    collective : Collective
        The operation.
    dtype, op : str
        Its type and reduction.

    Raises
    ------
    UsageError
        If MPI has no such type or reduction.
    """
    if collective.reduces and (op == "mean" or dtype == "bfloat16"):
        raise UsageError(
            "bench --vs",
            f"MPI itself has no {collective.name} of {dtype} with {op}",
            "leave out --vs, or choose float32 and sum",
        )


def make_case(session: Session, collective: Collective, nbytes: int) -> Case:
    """Make buffers and inputs; collective where they are shared ones.

    Parameters
    ----------
    session : Session
        Says type and reduction.
    collective : Collective
        The operation.
    nbytes : int
        Size asked for.

    Returns
    -------
    Case
        On the session's communicator.
    """
    request = session.request
    op = request.op if collective.reduces else "sum"
    inputs = pattern(session.ranks, request.dtype, op)
    empty = session.comm.empty if request.empty else None
    return Case(collective, nbytes, inputs, session.comm, empty, persistent=request.persistent)


def settle(session: Session, collective: Collective, case: Case, algorithm: str) -> None:
    """Make the calls that are trials, so that none of them is timed; collective.

    Parameters
    ----------
    session : Session
        Where.
    collective : Collective
        The operation.
    case : Case
        Its buffers.
    algorithm : str
        Value of ``algorithm=``; only ``"auto"`` tries anything.
    """
    if algorithm != "auto":
        return
    nbytes = call_bytes(collective, case.problem)
    call = case.ours(algorithm)
    for _ in range(RACES):
        explained = session.comm.explain(collective.name, nbytes, session.request.dtype)
        for _ in range(explained.calls_to_settle):
            call()


def time_sides(
    session: Session,
    sides: dict[str, Callable[[], object]],
    nbytes: int,
    guess: float | None = None,
    batched: bool | None = None,
) -> dict[str, Timing]:
    """Estimate, warm up, plan and time; collective.

    Parameters
    ----------
    session : Session
        Says how much time a size may take.
    sides : dict of str to callable
        Calls to time; equal ones are estimated once.
    nbytes : int
        Size of the operation.
    guess : float, optional
        Seconds per call, where it is known already.
    batched : bool, optional
        Batches or single calls; default: the fastest side decides.

    Returns
    -------
    dict of str to Timing
        By side.
    """
    effort, plain = session.request.effort, session.plain
    guesses: dict[Callable[[], object], float] = {}
    for call in sides.values():
        if call not in guesses:
            guesses[call] = estimate(plain, call) if guess is None else guess
            for _ in range(effort.warmups(guesses[call], nbytes)):
                call()
    estimates = [guesses[call] for call in sides.values()]
    return clock(plain, sides, effort.schedule(estimates, nbytes, batched=batched))


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
        Ours: value of ``algorithm=``.
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
