"""The benchmark ``faults``: from a rank's death to the next right all-reduce.

All ranks agree on a moment; then one of them kills or stops itself, while the
others are in an all-reduce of an attempt.  They report four moments: it
raised, the members had agreed, the new world was there, the repeated
all-reduce was over.  The moments are of the machine's clock, so ranks on
several machines need clocks that agree.  The bench goes on until two are left,
or, where the dead are replaced, for so many faults.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from closeranks.comms.settings import setting
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import Benchmark, LoneRun
from closeranks.jobs.bench.churn.model import FEWEST, MOST
from closeranks.jobs.bench.churn.record import UNWRITTEN
from closeranks.jobs.bench.measuring.number_text import aligned
from closeranks.jobs.bench.measuring.session import (
    open_session,
    ranks_per_node,
    write_rows,
    writer,
)
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, Timing
from closeranks.jobs.launch import program

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.faults.attempts import Attempt
    from closeranks.jobs.bench.measuring.session import BenchRequest, Session

Row = dict[str, Any]
Phases = list[float | None]

#: What may happen to a rank.
KINDS = ("kill", "stop")
#: Bytes of the all-reduce, and how many are made before each fault.
NBYTES = 1 << 20
_CALLS = 30
#: How long after it was agreed upon a fault happens, in seconds.
_AHEAD_S = 0.05
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_PHASES = ("detected", "revoked", "agreed", "shrunk", "redone")
_WIDTHS = {"members": 8, "kind": 6, "mode": 8, **dict.fromkeys(_PHASES, 10), "total ms": 10}


class PlannedFault(NamedTuple):
    """A fault that is still to come.

    Attributes
    ----------
    number : int
        0 for the first.
    kind : str
        Of `KINDS`.
    seat : int
        The seat of the rank that is lost.
    at_s : float
        When, by the machine's clock.
    """

    number: int
    kind: str
    seat: int
    at_s: float


class Told(NamedTuple):
    """A member's report of a fault to the others.

    Attributes
    ----------
    fault : PlannedFault or None
        None of a newcomer, which has not seen it.
    members, nodes : int
        How many there were.
    phases : list of float or None
        How long each took here, in ms; None for those that it did not see.
    wrong : int
        Elements of the first sum after it.
    mode : str
        How it took its seat if it is a newcomer: "replace" or "spawn".
    """

    fault: PlannedFault | None
    members: int
    nodes: int
    phases: Phases
    wrong: int
    mode: str


def check_ranks(ranks: int, spares: int, recruits: int) -> None:
    """Refuse a job in which nobody can be lost, or not all have a bit.

    Pure.

    Parameters
    ----------
    ranks : int
        Number of ranks, spares too.
    spares, recruits : int
        Ranks that are replaced by spares, and by new processes.

    Raises
    ------
    UsageError
        If this is one.
    """
    members = ranks - spares
    fewest = FEWEST if spares + recruits else FEWEST + 1
    if members < fewest:
        why = "one dies, the first does not" if spares + recruits else "one dies, two are left"
        raise UsageError("bench faults", f"{members} ranks that work, and {why}",
                         f"start it with closeranks run --faults -n {fewest}, or more")  # fmt: skip
    if members > MOST:
        raise UsageError("bench faults", f"{members} ranks that work have a bit each in a word",
                         f"start at most {MOST}")  # fmt: skip


def measure_faults(
    session: Session, kinds: tuple[str, ...], mode: str, replaced: int
) -> Iterator[Row]:
    """Lose one rank after the other; collective over the ranks that are left.

    A newcomer takes part from the all-reduce on that is repeated with it.

    Parameters
    ----------
    session : Session
        On a communicator opened with ``on_failure="shrink"``, or "replace".
    kinds : tuple of str
        Of `KINDS`, in turn.
    mode : str
        How this process took its seat if it is a newcomer: "replace", as a
        spare, or "spawn", as a new process.
    replaced : int
        How many ranks are replaced; 0 where they are not.

    Yields
    ------
    dict
        A row for each fault, the same on every rank that is left.
    """
    comm, number = session.comm, 0
    given = np.full(NBYTES // 8, 1 << comm.seat, np.int64)
    taken = np.empty_like(given)

    def clear() -> None:
        taken.fill(UNWRITTEN)

    def add() -> None:
        comm.Allreduce(given, taken)

    is_new = comm.joined
    while is_new or _has_another(comm, number, replaced):
        fault, phases = None, Phases()
        members, nodes = comm.size, len(ranks_per_node(comm))
        if is_new:
            for attempt in comm.attempts():
                with attempt:
                    clear()
                    add()
        else:
            for _ in range(_CALLS):
                add()
            fault = _agreed(comm, kinds, number)
            _strike(comm, fault)
            phases = _survive(comm, fault.at_s, clear, add)
        wrong = int((taken != sum(1 << seat for seat in comm.alive)).sum())
        told = comm.allgather(Told(fault, members, nodes, phases, wrong, mode))
        yield _row(told)
        assert told[0].fault is not None, "the first rank is never lost"
        number, is_new = told[0].fault.number + 1, False


def _has_another(comm: Communicator, number: int, replaced: int) -> bool:
    """Say whether there is another fault; the same on all members."""
    if replaced:
        return number < replaced and comm.size >= FEWEST
    return comm.size > FEWEST


def _agreed(comm: Communicator, kinds: tuple[str, ...], number: int) -> PlannedFault:
    """Agree on the next fault; collective.  The first rank is spared."""
    seat = random.Random(number).choice(comm.alive[1:])
    kind = kinds[number % len(kinds)]
    comm.bcast(
        PlannedFault(number, kind, seat, 0.0)
    )  # the first of its kind takes longer than is left
    fault: PlannedFault = comm.bcast(PlannedFault(number, kind, seat, time.monotonic() + _AHEAD_S))
    return fault


def _strike(comm: Communicator, fault: PlannedFault) -> None:
    """Let it happen, if it is this rank that it meets."""
    if comm.seat == fault.seat:
        _wait_until(fault.at_s)
        os.kill(os.getpid(), _SIGNALS[fault.kind])


def check_kinds(words: str) -> tuple[str, ...]:
    """Read ``--kinds``; raises `UsageError` for what cannot happen.

    Parameters
    ----------
    words : str
        Of `KINDS`, between commas.

    Returns
    -------
    tuple of str
        In the order of the words.
    """
    kinds = tuple(words.split(","))
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError("bench --kinds", f"unknown {', '.join(unknown)}",
                         f"choose {' or '.join(KINDS)}")  # fmt: skip
    return kinds


def head() -> str:
    """Write the line above the rows.

    Returns
    -------
    str
        One line.
    """
    return "# " + aligned(_WIDTHS, _WIDTHS.values()).lstrip()


def as_line(row: Row) -> str:
    """Write a row as text; times are milliseconds.

    Parameters
    ----------
    row : dict
        Of `measure_faults`.

    Returns
    -------
    str
        One line.
    """
    words = [row["ranks"], row["kind"], row["mode"]]
    times = [row[f"{phase}_ms"] for phase in (*_PHASES, "total")]
    words += ["-" if time_ms is None else f"{time_ms:.1f}" for time_ms in times]
    return "  " + aligned(words, _WIDTHS.values())


def _wait_until(moment_s: float) -> None:
    while time.monotonic() < moment_s:
        time.sleep(1e-4)


def _survive(
    comm: Communicator, fault_s: float, clear: Callable[[], object], call: Callable[[], object]
) -> Phases:
    """Call until a recovery was needed; gives what each phase took here, in ms.

    The result is cleared before every call: if a repeated call wrote nothing,
    the right sum of the call before would still stand there.  No phase counts
    the time of that.

    A rank that meets the fault between two loops recovers before its next
    attempt, which ends well.  The epoch tells all ranks that it was the last
    one.
    """
    epoch, times = comm.epoch, list[float | None]()
    while comm.epoch == epoch:
        clear()
        called_s, failed, cleared_s = time.monotonic(), None, 0.0
        for attempt in comm.attempts():
            begun_s = time.monotonic()
            if failed is not None:
                clear()
                cleared_s = time.monotonic() - begun_s
            with attempt:
                call()
            if not attempt.agreed:
                failed = attempt
        times = [called_s, None, None, begun_s] if failed is None else _marks(failed)
    times = [fault_s, *times, time.monotonic() - cleared_s]
    spans = [*pairwise(times), (times[0], times[-1])]
    return [_ms_between(*span) for span in spans]


def _ms_between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else 1e3 * (end_s - start_s)


def _marks(failed: Attempt) -> list[float | None]:
    """Give when the phases of an attempt were over that has failed here."""
    return [failed.marks[name] for name in ("raised", "revoked", "agreed", "shrunk")]


def _row(told: list[Told]) -> Row:
    """Make the row: of every phase the slowest rank's."""
    seen = [one for one in told if one.fault is not None]
    modes = [one.mode for one in told if one.fault is None]
    phases = zip(*(one.phases for one in seen), strict=True)
    slowest = [max((ms for ms in phase if ms is not None), default=None) for phase in phases]
    names = [f"{phase}_ms" for phase in (*_PHASES, "total")]
    assert seen[0].fault is not None
    return {
        "name": "faults",
        "algorithm": "auto",
        "ranks": seen[0].members,
        "nodes": seen[0].nodes,
        "dtype": "int64",
        "op": "sum",
        "size_bytes": NBYTES,
        "iterations": 1,
        "kind": seen[0].fault.kind,
        "mode": modes[0] if modes else "shrink",
        **dict(zip(names, slowest, strict=True)),
        **_timing(seen).columns(),
        **NO_BANDWIDTH,
        "wrong": sum(one.wrong for one in told),
    }


def _timing(seen: list[Told]) -> Timing:
    """Give the times of a row of one sample: the slowest rank's total."""
    totals_s = [1e-3 * one.phases[-1] for one in seen if one.phases[-1] is not None]
    return Timing(np.array([max(totals_s)]), fmean(totals_s), 1, False)


def _run(request: BenchRequest) -> int:
    """Lose ranks, and write a row for each fault; gives the exit status.

    Collective over the ranks that are left.  A `UsageError` is raised on every
    rank if there are too few or too many.
    """
    kinds, recruits = check_kinds(request.own["kinds"]), request.own["recruits"]
    program.begin()
    from mpi4py import MPI

    import closeranks

    spares, is_started = _spares(), setting("JOINS") is not None
    if not is_started:
        check_ranks(MPI.COMM_WORLD.size, spares, recruits)
    mode = "spawn" if is_started else "replace"
    on_failure = "replace" if spares or recruits else "shrink"
    with closeranks.init(on_failure=on_failure, recruits=bool(recruits)) as comm:
        session = open_session(replace(request, dtype="int64", op="sum"), comm)
        write = writer(comm)
        if not comm.joined:
            for line in (*(f"# {words}" for words in session.describe()), head()):
                write(line)
        rows = []
        for row in measure_faults(session, kinds, mode, spares + recruits):
            rows.append(row)
            write(as_line(row))
        if comm.rank == 0:
            write_rows(request, rows)
        return 1 if any(row["wrong"] for row in rows) else 0


def _spares() -> int:
    """Read how many ranks wait."""
    text = setting("SPARES") or "0"
    if not text.isdecimal():
        raise UsageError("CLOSERANKS_SPARES", f"is {text!r}", "a number")
    return int(text)


_OPTIONS = (
    click.Option(
        ["--kinds"],
        default=",".join(KINDS),
        show_default=True,
        help="What happens to ranks in faults, in turn.",
    ),
    click.Option(
        ["--recruits"],
        type=click.IntRange(0),
        default=0,
        help="Ranks that faults replaces by new processes.",
    ),
)

BENCHMARKS = (
    Benchmark("faults", options=_OPTIONS, lone=LoneRun("ranks are lost", ("json_path",), _run)),
)
