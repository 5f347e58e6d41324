"""The collectives: each at one size, checked, timed, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import Benchmark, Item, TableColumn
from closeranks.jobs.bench.measuring.collective_facts import (
    Collective,
    call_bytes,
    known_algorithms,
    planned_bytes,
)
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES, Case
from closeranks.jobs.bench.measuring.comparison import (
    against_best,
    against_copy,
    against_native,
    against_plain,
    check_comparable,
    make_case,
    settle,
    time_sides,
)
from closeranks.jobs.bench.measuring.network import nic_columns
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import BenchRequest, Session
from closeranks.jobs.bench.measuring.timing import Timing, bandwidth

Row = dict[str, Any]


def measure(session: Session, collective: Collective, algorithm: str, nbytes: int) -> Row:
    """Measure one row; collective over the session's ranks.

    Parameters
    ----------
    session : Session
        Where, and what to compare with.
    collective : Collective
        The operation.
    algorithm : str
        Value of ``algorithm=``.
    nbytes : int
        Size asked for.

    Returns
    -------
    dict
        The row, the same on every rank.
    """
    request = session.request
    case = make_case(session, collective, nbytes)
    ours, native = case.ours(algorithm), case.native(session.plain)
    wrong = _wrong(session, case, ours) if request.check else None
    settle(session, collective, case, algorithm)
    sides: dict[str, Callable[[], object]] = {"ours": ours}
    if request.native:
        sides |= {"native": native, "again": native}
    if request.copy:
        sides["copy"] = case.copy()
    if request.plain:
        sides["plain"] = case.blocking(session.plain)
    timings = time_sides(session, sides, case.size_bytes)
    if wrong is not None:
        wrong = max(wrong, _wrong(session, case, ours))
    row = _row(session, collective, algorithm, case.size_bytes, timings["ours"])
    row |= {"wrong": wrong, "asked_bytes": nbytes}
    if request.native:
        row |= against_native(timings)
    if request.copy:
        row |= against_copy(timings)
    if request.plain:
        row |= against_plain(timings)
    if request.best:
        row |= against_best(session, row)
    if collective.name == "allreduce" and session.wire is not None:
        seconds = timings["ours"].p50_us * 1e-6
        row["wire_percent"] = session.wire.percent(case.size_bytes, seconds)
    settle(session, collective, case, algorithm)  # a plan that won may be looked at again
    row["chosen"] = _chosen(session, collective, case, algorithm)
    if request.counters:
        row |= nic_columns(session.plain, ours)
        row["planned_bytes"] = planned_bytes(
            collective, case.problem, session.comm.hierarchy, row["chosen"]
        )
    case.free()
    return row


def _row(
    session: Session, collective: Collective, algorithm: str, nbytes: int, timing: Timing
) -> Row:
    """Make the part of a row that every collective has."""
    return {
        "name": collective.name,
        "algorithm": algorithm,
        "ranks": session.ranks,
        "nodes": session.nodes,
        "dtype": session.request.dtype,
        "op": session.request.op if collective.reduces else "none",
        "size_bytes": nbytes,
        "iterations": timing.calls,
        **timing.columns(),
        **bandwidth(nbytes, timing.p50_us, collective.factor(session.ranks)),
        "batched": timing.batched,
    }


def _wrong(session: Session, case: Case, call: Callable[[], object]) -> int:
    """Call once on spoiled buffers and count wrong elements of all ranks."""
    case.refill()
    call()
    return int(session.plain.allreduce(case.wrong()))


def _chosen(session: Session, collective: Collective, case: Case, algorithm: str) -> str:
    """Name the algorithm that was used, after the calls that decide it."""
    if algorithm != "auto":
        return algorithm
    nbytes = call_bytes(collective, case.problem)
    return session.comm.explain(collective.name, nbytes, session.request.dtype).algorithm


def _items(request: BenchRequest, name: str) -> list[Item]:
    """List sizes of each algorithm that the operation has; a barrier has one size."""
    if request.native or request.best:
        check_comparable(COLLECTIVES[name], request.dtype, request.op)
    sizes = (0,) if name == "barrier" else request.sizes_of(name)
    known = known_algorithms(name)
    return [
        Item(name, algorithm, nbytes)
        for algorithm in request.algorithms
        if algorithm in known
        for nbytes in sizes
    ]


def _rows(session: Session, item: Item) -> Iterator[Row]:
    yield measure(session, COLLECTIVES[item.name], item.algorithm, item.nbytes)


def _check(request: BenchRequest) -> None:
    if request.op == "mean" and {"scan", "exscan"} & set(request.names):
        raise UsageError("bench --op", "a scan has no mean", "name other operations, or --op sum")


def _ratio(value: float) -> str:
    return f"{value:.2f}x"


def _percent(value: float) -> str:
    return f"{value:.1f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


_COLUMNS = (
    TableColumn("wire_percent", "wire %", 7, _percent),
    TableColumn("native_us_p50", "native us", 10, short),
    TableColumn("speedup", "speedup", 8, _ratio),
    TableColumn("native_vs_native", "A/A", 6, _ratio),
    TableColumn("plain_us_p50", "plain us", 9, short),
    TableColumn("speedup_plain", "vs plain", 8, _ratio),
    TableColumn("best_us_p50", "best us", 9, short),
    TableColumn("speedup_best", "vs best", 8, _ratio),
    TableColumn("copy_us_p50", "copy us", 9, short),
    TableColumn("over_copy", "/copy", 7, _ratio),
    TableColumn("nic_tx_bytes_max", "NIC bytes", 10, _whole),
    TableColumn("nic_even_percent", "even %", 7, _percent),
    TableColumn("planned_bytes", "planned", 10, _whole),
    TableColumn("chosen", "chosen", 12, str),
    TableColumn("best_settings", " best setting", 0, str),
)

BENCHMARKS = tuple(
    Benchmark(
        name,
        items=_items,
        measure=_rows,
        columns=_COLUMNS,
        check=_check,
        operations=lambda _request, name: (name,),
        in_all=True,
    )
    for name in COLLECTIVES
)
