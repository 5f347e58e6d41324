"""The benchmark ``overlap``: computation while a collective is under way.

The communication is one collective, or gradients in buckets.  By OMB's
definition the computation takes as long as the collective alone, and ``overlap
= max(0, 100 - (overall - compute) / pure * 100)``.  There ``compute`` is the
time of the computation while the collective is under way, so a computation
that is slowed down does not count against it.  ``hidden_percent`` takes the
time of the computation alone instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import click
import numpy as np

from closeranks.comms.discovery.node_hardware import usable_cores
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import (
    Benchmark,
    Item,
    collectives_among,
    own_table,
)
from closeranks.jobs.bench.measuring.collective_facts import known_algorithms
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES, differing, reduction
from closeranks.jobs.bench.measuring.comparison import make_case
from closeranks.jobs.bench.measuring.compute_work import Work, works
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.timing import (
    RepetitionSchedule,
    Timing,
    agree,
    bandwidth,
    clock,
    together,
)

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.jobs.bench.measuring.collective_facts import Pattern
    from closeranks.jobs.bench.measuring.collectives import Case
    from closeranks.jobs.bench.measuring.session import BenchRequest, Session


#: Gradients, each a bucket of its own: the last one has nothing left to hide behind.
GRADIENTS = 16

#: Computes part k of n, called with both.
Compute = Callable[[int, int], None]


class Errand(Protocol):
    """Communication that leaves the main thread time to compute."""

    name: str

    def run(self, compute: Compute) -> None:
        """Start, compute, and wait; collective."""

    def refill(self) -> None:
        """Spoil what is received, and make what is sent."""

    def wrong(self) -> int:
        """Count this rank's wrong elements; local."""

    def close(self) -> None:
        """Let go of what it holds."""


class Single:
    """One non-blocking collective: starts, then everything is computed.

    Parameters
    ----------
    case : Case
        The collective and its buffers.
    algorithm : str
        Value of ``algorithm=``.
    method : str
        Name of the blocking method.
    """

    def __init__(self, case: Case, algorithm: str, method: str) -> None:
        self._case, self._begin = case, case.begins(algorithm)
        self.name = f"I{method.lower()}"

    def run(self, compute: Compute) -> None:
        """Start, compute, and wait; collective."""
        request = self._begin()
        compute(0, 1)
        request.Wait()

    def refill(self) -> None:
        """Spoil the receive buffer."""
        self._case.refill()

    def wrong(self) -> int:
        """Count this rank's wrong elements; local."""
        return self._case.wrong()

    def close(self) -> None:
        """Do nothing: requests are gone."""


class Gradients:
    """Gradients in buckets: each is ready when its part has been computed.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    nbytes : int
        Bytes of all gradients together, rounded up to whole ones.
    pattern : Pattern
        Inputs and results.
    algorithm : str
        As for `Single`.
    """

    name = "bucketed"

    def __init__(self, comm: Communicator, nbytes: int, pattern: Pattern, algorithm: str) -> None:
        self._rank, self._ranks, self._pattern = comm.Get_rank(), comm.Get_size(), pattern
        self._each = max(1, -(-nbytes // (pattern.dtype.itemsize * GRADIENTS)))
        self._arrays = {str(k): np.empty(self._each, pattern.dtype) for k in range(GRADIENTS)}
        with comm.using(algorithm=algorithm):
            self._buckets = comm.bucketed(
                self._arrays,
                bucket_bytes=self._each * pattern.dtype.itemsize,
                op=reduction(pattern.op),
            )
        self.refill()

    def run(self, compute: Compute) -> None:
        """Compute one gradient after the other, the last one first, as a backward pass."""
        for part, name in enumerate(reversed(self._arrays)):
            compute(part, GRADIENTS)
            self._buckets.ready(name)
        self._buckets.wait()

    def refill(self) -> None:
        """Make the gradients anew: their sums take their places."""
        for start, array in self._parts():
            array[:] = self._pattern.given(self._rank, start, self._each)

    def wrong(self) -> int:
        """Count this rank's wrong elements after one run; local."""
        rounded = self._pattern.op == "mean"
        return sum(
            differing(array, self._pattern.reduced(self._ranks, start, self._each), rounded=rounded)
            for start, array in self._parts()
        )

    def close(self) -> None:
        """Close the buckets."""
        self._buckets.close()

    def _parts(self) -> list[tuple[int, Any]]:
        """List where each gradient begins in the pattern, and the gradient."""
        return [(k * self._each, array) for k, array in enumerate(self._arrays.values())]


Row = dict[str, Any]

#: What a call may cost beside its bound, see `bound_us` in a row.
SLACK = 1.15
_FEWEST, _MOST = 3, 100
_ROWS = 4

_WIDTHS = {
    "bytes": 10, "started": 15, "compute": 8, "calls": 6, "pure us": 10, "alone us": 10,
    "compute us": 11, "overall us": 11, "overlap %": 10, "hidden %": 9, "bound us": 10,
    "of bound": 9, "wrong": 7,
}  # fmt: skip


@dataclass
class _Computing:
    """Computes parts of a fixed number of calls and adds up what they take."""

    work: Work
    calls: int
    seconds: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a sample."""
        self.seconds.append(0.0)

    def part(self, k: int, n: int) -> None:
        """Compute part k of n."""
        began = time.perf_counter()
        self.work.run(self.calls * (k + 1) // n - self.calls * k // n)
        self.seconds[-1] += time.perf_counter() - began


def measure_overlap(session: Session, operation: str, algorithm: str, nbytes: int) -> Iterator[Row]:
    """Measure one size; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    operation : str
        A collective; an all-reduce is also measured as gradients in buckets.
    algorithm : str
        Value of ``algorithm=``.
    nbytes : int
        Size of the operation.

    Yields
    ------
    dict
        Rows: times are those of the whole, the slowest rank's.
    """
    method = COLLECTIVES[operation].method
    case = make_case(session, COLLECTIVES[operation], nbytes)
    errands: list[Errand] = [Single(case, algorithm, method)]
    if operation == "allreduce":
        pattern = case.problem.pattern
        errands.append(Gradients(session.comm, case.size_bytes, pattern, algorithm))
    for errand in errands:
        for work in works():
            row = _measured(session, errand, work, case.size_bytes)
            row |= bandwidth(
                case.size_bytes, row["time_us_p50"], COLLECTIVES[operation].factor(session.ranks)
            )
            row |= {"algorithm": algorithm, "operation": operation}
            row |= {"dtype": session.request.dtype}
            row["op"] = session.request.op if COLLECTIVES[operation].reduces else "none"
            yield row
        errand.close()


def head() -> str:
    """Return the names of the columns, as a comment."""
    return "#" + " ".join(name.rjust(width) for name, width in _WIDTHS.items())


def as_line(row: Row) -> str:
    """Write a row below `head`.

    Parameters
    ----------
    row : dict
        One of `measure_overlap`.

    Returns
    -------
    str
        "-" for what was not measured.
    """
    times = [short(row[f"{name}_us"]) for name in ("pure", "alone", "compute", "overall")]
    percents = [f"{row[f'{name}_percent']:.1f}" for name in ("overlap", "hidden")]
    bound = ["-", "-"]
    if "bound_us" in row:
        bound = [short(row["bound_us"]), f"{row['overall_over_bound']:.2f}x"]
    wrong = "-" if row["wrong"] is None else str(row["wrong"])
    words = [row["size_bytes"], row["started"], row["computed"], row["iterations"]]
    cells = zip([*words, *times, *percents, *bound, wrong], _WIDTHS.values(), strict=True)
    return " " + " ".join(str(text).rjust(width) for text, width in cells)


def percent(overall: float, compute: float, pure: float) -> float:
    """Return the share of ``pure`` that was hidden, by OMB's formula.

    Parameters
    ----------
    overall, compute, pure : float
        Times in one unit.

    Returns
    -------
    float
        At least 0; above 100 only by noise.
    """
    return max(0.0, 100.0 - (overall - compute) / pure * 100.0)


def _measured(session: Session, errand: Errand, work: Work, nbytes: int) -> Row:
    """Check and time one errand beside one kind of work."""
    plain = session.plain
    wrong = _wrong(session, errand, work)
    pure_s = _typical(session, errand)
    computing = _Computing(work, work.calls(plain, pure_s))

    def both() -> None:
        computing.begin()
        errand.run(computing.part)

    sides: dict[str, Callable[[], object]] = {
        "pure": partial(errand.run, _nothing),
        "alone": partial(work.run, computing.calls),
        "overall": both,
    }
    schedule = RepetitionSchedule(_samples(session, pure_s), 1, False)
    timings = clock(plain, sides, schedule)
    timings["compute"] = agree(plain, computing.seconds, schedule.blocks, False)
    row = describe(session, "overlap", nbytes, timings["overall"]) | {"wrong": None}
    row |= {"started": errand.name, "computed": work.name, **_percents(timings)}
    if session.nodes == 1:
        row |= _bound(session, errand, row)
    if session.request.check:
        row["wrong"] = max(wrong, _wrong(session, errand, work))
    return row


def _percents(timings: dict[str, Timing]) -> Row:
    """Derive what OMB prints from the medians."""
    us = {name: timing.p50_us for name, timing in timings.items()}
    return {
        **{f"{name}_us": value for name, value in us.items()},
        "overlap_percent": percent(us["overall"], us["compute"], us["pure"]),
        "hidden_percent": percent(us["overall"], us["alone"], us["pure"]),
    }


def _bound(session: Session, errand: Errand, row: Row) -> Row:
    """Say what one node can do at best: its cores have to do both.

    The processor time of the communication is that of all ranks, while their
    main threads wait or while they sleep, whichever is less.
    """
    span_s = 2e-6 * row["pure_us"]
    ways: tuple[Compute, Compute] = _nothing, lambda _, n: time.sleep(span_s / n)
    cpu_s = min(_cpu_s(session, errand, way) for way in ways)
    bound_us = SLACK * (row["alone_us"] + 1e6 * cpu_s / usable_cores())
    return {
        "cpu_us": 1e6 * cpu_s,
        "bound_us": bound_us,
        "overall_over_bound": row["overall_us"] / bound_us,
    }


def _cpu_s(session: Session, errand: Errand, compute: Compute) -> float:
    """Measure the processor time of all ranks in a few runs; seconds a run."""
    session.plain.Barrier()
    before = time.process_time()
    for _ in range(_FEWEST):
        errand.run(compute)
    return float(session.plain.allreduce(time.process_time() - before)) / _FEWEST


def _samples(session: Session, pure_s: float) -> int:
    """Count the samples: a row's share of the budget, within bounds."""
    effort = session.request.effort
    if effort.iterations is not None:
        return effort.iterations
    affordable = int(effort.budget_s / _ROWS / (4 * pure_s))  # 1 alone, 1 pure, 1 to 2 both
    return min(max(affordable, _FEWEST), _MOST)


def _typical(session: Session, errand: Errand) -> float:
    """Find out how long the communication takes alone, but for its first call."""
    call = partial(errand.run, _nothing)
    together(session.plain, call, 1)
    return together(session.plain, call, 2) / 2


def _wrong(session: Session, errand: Errand, work: Work) -> int:
    """Run once on spoiled buffers while computing; count what is wrong."""
    errand.refill()
    errand.run(lambda _k, _n: work.run(1))
    return int(session.plain.allreduce(errand.wrong()))


def _nothing(k: int, n: int) -> None:
    """Compute nothing."""
    del k, n


#: Started if nobody says.
_OPERATION = "allreduce"


def _collectives(_context: click.Context, _option: click.Parameter, words: str) -> tuple[str, ...]:
    """Read ``--of``."""
    names = words.split(",")
    found = collectives_among(names)
    if len(found) < len(names):
        raise UsageError(
            "bench --of", f"not all collectives: {words}", "as in --of allreduce,bcast"
        )
    return tuple(found)


def _operations(request: BenchRequest, _name: str) -> Sequence[str]:
    operations: Sequence[str] = request.own.get("overlapped", (_OPERATION,))
    return operations


def _items(request: BenchRequest, name: str) -> list[Item]:
    """List the sizes of each algorithm of each operation."""
    return [
        Item(name, algorithm, nbytes, operation)
        for operation in _operations(request, name)
        for algorithm in request.algorithms
        if algorithm in known_algorithms(operation)
        for nbytes in request.sizes_of(name)
    ]


def _rows(session: Session, item: Item) -> Iterator[Row]:
    return measure_overlap(session, item.operation, item.algorithm, item.nbytes)


BENCHMARKS = (
    Benchmark(
        "overlap",
        items=_items,
        measure=_rows,
        lines=own_table(head, as_line),
        options=(
            click.Option(
                ["--of", "overlapped"],
                default=_OPERATION,
                show_default=True,
                callback=_collectives,
                help="Collectives that overlap starts, comma-separated.",
            ),
        ),
        sizes="64K:16M:4",
        operations=_operations,
    ),
)
