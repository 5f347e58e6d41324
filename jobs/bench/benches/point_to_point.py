"""Benchmarks of two ranks, or of many pairs of ranks, that send to each other."""

from __future__ import annotations

from typing import Any

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.osu_exchange import Exchange, window
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.time_distribution import Timing, bandwidth
from closeranks.jobs.bench.measuring.timing import Call, clock, estimate

Row = dict[str, Any]


def measure_points(session: Session, name: str, nbytes: int) -> Row:
    """Measure one row of a point-to-point benchmark; collective.

    Parameters
    ----------
    session : Session
        Where.
    name : str
        ``"pingpong"``, ``"bandwidth"``, ``"bibandwidth"`` (rank 0 and the
        last rank) or ``"pairs"`` (the first half of the ranks to the second,
        all at once).
    nbytes : int
        Size of a message.

    Returns
    -------
    dict
        The row; times are per message, ``algbw_GBps`` is that of all pairs
        and directions together, ``busbw_GBps`` that of one.
    """
    check_ranks(session, name)
    partner, pairs = _partner(session, name)
    rank = session.plain.Get_rank()
    exchange = Exchange(session.plain, partner, partner is not None and rank < partner, nbytes)
    call: Call = {
        "pingpong": exchange.pingpong,
        "bandwidth": exchange.one_way,
        "bibandwidth": exchange.both_ways,
        "pairs": exchange.one_way,
    }[name]
    messages = 2 if name == "pingpong" else window(nbytes)
    timing = _clock(session, call, nbytes).scaled(1 / messages)
    wrong = session.plain.allreduce(exchange.wrong()) if session.request.check else None
    streams = pairs * (2 if name == "bibandwidth" else 1)
    one = bandwidth(nbytes, timing.p50_us, 1.0)["algbw_GBps"]
    return {
        **describe(session, name, nbytes, timing),
        "algbw_GBps": one * streams,
        "busbw_GBps": one,
        "wrong": wrong,
        "pairs": pairs,
        "window": 1 if name == "pingpong" else messages,
    }


def describe(session: Session, name: str, nbytes: int, timing: Timing) -> Row:
    """Return the keys that all rows between points share.

    Parameters
    ----------
    session : Session
        Where.
    name : str
        The benchmark.
    nbytes : int
        Size of a message.
    timing : Timing
        Per message.

    Returns
    -------
    dict
        The beginning of a row.
    """
    return {
        "name": name,
        "algorithm": "native",
        "ranks": session.ranks,
        "nodes": session.nodes,
        "dtype": "uint8",
        "op": "none",
        "size_bytes": nbytes,
        "iterations": timing.calls,
        **timing.columns(),
    }


def check_ranks(session: Session, name: str) -> None:
    """Refuse benchmarks of pairs without a pair.

    Parameters
    ----------
    session : Session
        Where.
    name : str
        The benchmark.

    Raises
    ------
    UsageError
        If there is only one rank.
    """
    if session.ranks < 2:
        raise UsageError(f"bench {name}", "it needs 2 ranks and has 1", "start it with run -n 2")


def _partner(session: Session, name: str) -> tuple[int | None, int]:
    """Find this rank's partner and the number of pairs."""
    rank, ranks = session.plain.Get_rank(), session.ranks
    if name != "pairs":
        return {0: ranks - 1, ranks - 1: 0}.get(rank), 1
    half = ranks // 2
    if rank >= 2 * half:
        return None, half
    return (rank + half) % (2 * half), half


def _clock(session: Session, call: Call, nbytes: int) -> Timing:
    """Estimate, warm up and time a single side."""
    effort = session.request.effort
    guess = estimate(session.plain, call)
    for _ in range(effort.warmups(guess, nbytes)):
        call()
    schedule = effort.schedule([guess], nbytes)
    return clock(session.plain, {"ours": call}, schedule)["ours"]
