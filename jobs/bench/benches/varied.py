"""The benchmark ``varied``: calls whose size or kind changes, ours and mpi4py's.

`call_patterns` draws the calls.  A block makes some tens or hundreds of them
in a loop, and the sides take turns: ours, mpi4py's own methods, and these
again.  All sides of a block make the same calls, each on buffers of its own
that are ready before the clock starts.

Every rank reads `perf_counter_ns` once after each call, so that the time of a
call goes from the return of the one before to its own.  There is no barrier
between calls.  The loop looks the method up and unpacks the arguments, which
costs 0.1 to 0.2 us a call on all sides alike.  Median, mean, 99th percentile
and extremes of a block are those of the slowest rank, each by itself.  A row
holds the medians over its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from mmap import MAP_PRIVATE, mmap
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.call_patterns import (
    FAMILIES,
    PATTERNS,
    CallPattern,
    VariedCall,
    chosen,
)
from closeranks.jobs.bench.benches.churn import SEED
from closeranks.jobs.bench.benches.registration import Benchmark, Item
from closeranks.jobs.bench.measuring.collectives import differing
from closeranks.jobs.bench.measuring.number_text import aligned, short
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.jobs.bench.measuring.session import BenchRequest, Session

Row = dict[str, Any]
Array = NDArray[Any]
#: The name of a method, and its arguments.
BoundCall = tuple[str, tuple[Any, ...]]

#: Blocks a side of a settled row, and bounds of the budget.
FEWEST, MOST = 9, 45
#: Calls of each size class before settled blocks, ours and the library's.  Trials
#: come again after 100 and after 1000 calls.
_SETTLED, _NATIVE = 2000, 100
#: Seconds after which a size class counts as settled whatever its calls are.
_SETTLE_S: Final = 20.0
#: Calls between two looks at these seconds.
_LOOK: Final = 100
#: Bytes that empty the caches, and the sides of the matrices of a step.
_SWEPT_BYTES, _SIDE = 32 << 20, 256
_LINE: Final = 64
#: Values are small, so that every sum is exact; calls begin at different ones.
_VALUES, _SHIFT = 13, 64
#: What lies in memory for results before a call, of either side.
_SPOILED: Final = {"ours": 0xEE, "native": 0x77, "again": 0x77}
_PERCENTILES: Final = {"min": 0, "p50": 50, "p99": 99, "max": 100}
_WIDTHS: Final = {"pattern": 11, "block": 8, "calls": 6, "p50 us": 9, "p99 us": 9, "mean us": 9,
                  "native p50": 11, "speedup": 8, "by mean": 9, "A/A": 7, "wrong": 6}  # fmt: skip


class _Block(NamedTuple):
    """What one block gave, the same on every rank: side -> name -> us, and elements."""

    us: dict[str, dict[str, float]]
    wrong: int


def measure_varied(session: Session, pattern: CallPattern) -> Iterator[Row]:
    """Measure one pattern: its first block, and after warming up more blocks.

    Collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    pattern : CallPattern
        Says which calls.

    Yields
    ------
    dict
        Two rows, the same on every rank.
    """
    run = _PatternRun(session, pattern)
    yield run.row("first", [run.block(0)], 0)
    run.settle(session.plain, _NATIVE, "native")
    settled = run.settle(session.comm, _SETTLED, "ours")
    yield run.row("settled", list(run.blocks()), settled)


class _PatternRun:
    """Makes the calls of a pattern on the ranks of a session."""

    def __init__(self, session: Session, pattern: CallPattern) -> None:
        self._session, self._pattern = session, pattern
        self._rank: int = session.plain.Get_rank()
        self._seed: int = session.request.own["seed"]
        self._calls = _calls_of_a_block(pattern, session.request.effort.iterations)
        numbers = np.arange(pattern.high + _SHIFT) * 7 + self._rank * 5
        self._values = (numbers % _VALUES).astype(np.uint8)
        is_step = pattern.pause == "step"
        self._swept = np.zeros(_SWEPT_BYTES if is_step else 0, np.uint8)
        self._matrix = np.ones((_SIDE, _SIDE) if is_step else (0, 0), np.float32)

    def blocks(self) -> Iterator[_Block]:
        """Give settled blocks: at least `FEWEST`, more while the budget lasts."""
        from mpi4py import MPI

        pattern, effort, plain = self._pattern, self._session.request.effort, self._session.plain
        began = perf_counter()
        yield self.block(1)
        spent_s = plain.allreduce(perf_counter() - began, MPI.MAX)
        count = FEWEST
        if effort.iterations is None:
            count = min(max(int(effort.budget_s / spent_s), FEWEST), MOST)
        if pattern.most is not None:
            count = min(count, pattern.most // self._calls - 1)
        yield from map(self.block, range(2, count + 1))

    def block(self, number: int) -> _Block:
        """Make the calls of a block on all sides, and compare; collective."""
        from mpi4py import MPI

        pattern, plain = self._pattern, self._session.plain
        calls = pattern.draw(pattern, self._seed, number, self._calls)
        sides = {"ours": self._session.comm, "native": plain, "again": plain}
        names, turn = list(sides), number % len(sides)
        us, results = dict[str, dict[str, float]](), dict[str, list[Array]]()
        for side in names[turn:] + names[:turn]:
            bound, results[side] = self._bind(calls, side)
            us[side] = self._timed(sides[side], bound)
        table = np.array([list(us[side].values()) for side in names])
        plain.Allreduce(MPI.IN_PLACE, table, op=MPI.MAX)
        agreed = {side: dict(zip(us[side], line.tolist(), strict=True))
                  for side, line in zip(names, table, strict=True)}  # fmt: skip
        pairs = zip(results["ours"], results["native"], strict=True)
        wrong = sum(differing(one, other, rounded=False) for one, other in pairs)
        return _Block(agreed, plain.allreduce(wrong) if self._session.request.check else 0)

    def settle(self, communicator: MPI.Intracomm, least: int, side: str) -> int:
        """Make each kind of call so often that it is settled, and each call once.

        Collective.  Gives the calls of the kind that had fewest.
        """
        kinds = dict[tuple[str, int], list[VariedCall]]()
        for call in self._pattern.pool(self._pattern, self._seed):
            kinds.setdefault(call.kind, []).append(call)
        warmup, done = self._session.request.effort.warmup, list[int]()
        for some in kinds.values():
            bound, _ = self._bind(some, side)
            wanted = max(least, len(some)) if warmup is None else warmup
            done.append(self._go_round(communicator, bound, wanted))
        return min(done)

    def _go_round(self, communicator: MPI.Intracomm, bound: list[BoundCall], wanted: int) -> int:
        """Make calls in turn, until they are enough or took too long; collective."""
        from mpi4py import MPI

        began = perf_counter()
        for start in range(0, wanted, _LOOK):
            stop = min(start + _LOOK, wanted)
            _times(communicator, [bound[at % len(bound)] for at in range(start, stop)])
            spent_s = perf_counter() - began
            if self._session.plain.allreduce(spent_s, MPI.MAX) > _SETTLE_S:
                return stop
        return wanted

    def _bind(self, calls: Sequence[VariedCall], side: str) -> tuple[list[BoundCall], list[Array]]:
        """Fill buffers for calls; gives the calls, and the results of this rank."""
        sent, received = (_buffers(self._pattern, calls) for _ in range(2))
        bound, results = list[BoundCall](), list[Array]()
        for at, (call, send, receive) in enumerate(zip(calls, sent, received, strict=True)):
            send[:] = self._values[at % _SHIFT :][: send.size]
            if not self._pattern.fresh:  # whose pages nobody has touched
                receive.view(np.uint8).fill(_SPOILED[side])
            bound.append((call.method, self._arguments(call, send, receive)))
            if call.method != "Reduce" or self._rank == 0:
                results.append(receive)
        return bound, results

    def _arguments(self, call: VariedCall, send: Array, receive: Array) -> tuple[Any, ...]:
        """Give the arguments of a method, as a program writes them."""
        from mpi4py import MPI

        if call.method == "Bcast":
            if self._rank == 0:
                receive[:] = send
            return receive, 0
        op = getattr(MPI, call.op)
        if call.method == "Reduce":
            return send, receive if self._rank == 0 else None, op, 0
        return send, receive, op

    def _timed(self, communicator: MPI.Intracomm, bound: list[BoundCall]) -> dict[str, float]:
        """Make calls, pausing now and then; gives this rank's us by name."""
        each = self._pattern.each or len(bound)
        nanoseconds, splits = list[int](), [0]
        for start in range(0, len(bound), each):
            with self._pause(communicator, splits) as current:
                self._session.plain.Barrier()
                nanoseconds += _times(current, bound[start : start + each])
        percentiles = np.percentile(nanoseconds, list(_PERCENTILES.values())) / 1e3
        return {
            **dict(zip(_PERCENTILES, percentiles.tolist(), strict=True)),
            "mean": float(np.mean(nanoseconds)) / 1e3,
            "split": float(np.median(splits[1:] or splits)) / 1e3,
        }

    @contextmanager
    def _pause(self, communicator: MPI.Intracomm, splits: list[int]) -> Iterator[MPI.Intracomm]:
        """Do what stands between calls while no clock runs; collective.

        Gives the communicator of the calls that follow.
        """
        if self._pattern.pause == "split":
            began = perf_counter_ns()
            made: Any = communicator.Split(0, self._rank)
            splits.append(perf_counter_ns() - began)
            yield made
            made.Free()
            return
        if self._pattern.pause == "step":
            self._matrix @ self._matrix
            self._swept += 1
        yield communicator

    def row(self, block: str, blocks: Sequence[_Block], settled: int) -> Row:
        """Make a row of some blocks."""
        session, pattern = self._session, self._pattern
        ours, native, again = (_medians(blocks, side) for side in ("ours", "native", "again"))
        row: Row = {
            "name": "varied", "algorithm": "auto", "ranks": session.ranks, "nodes": session.nodes,
            "dtype": "mixed", "op": "mixed", "size_bytes": None,
            "iterations": self._calls * len(blocks),
            **{f"time_us_{name}": ours[name] for name in ("min", "p50", "mean", "p99", "max")},
            "time_us_rank_mean": None, **NO_BANDWIDTH,
            "wrong": sum(one.wrong for one in blocks) if session.request.check else None,
            "pattern": pattern.name, "block": block, "blocks": len(blocks),
            "calls": self._calls * len(blocks), "settled_calls": settled, "seed": self._seed,
            "low_bytes": pattern.low, "high_bytes": pattern.high,
            **{f"us_per_call_{name}": ours[name] for name in ("p50", "p99", "mean")},
            **{f"native_us_{name}": native[name] for name in ("p50", "p99", "mean")},
            "speedup": native["p50"] / ours["p50"],
            "speedup_mean": native["mean"] / ours["mean"],
            "native_vs_native": native["p50"] / again["p50"],
        }  # fmt: skip
        if pattern.pause == "split":
            row |= {"split_us_p50": ours["split"], "native_split_us_p50": native["split"]}
        return row


def _calls_of_a_block(pattern: CallPattern, iterations: int | None) -> int:
    """Count the calls of a block: those of the pattern, or a share of what was typed."""
    calls = pattern.calls if iterations is None else math.ceil(iterations / FEWEST)
    return calls if pattern.most is None else min(calls, pattern.most // (FEWEST + 1))


def _buffers(pattern: CallPattern, calls: Sequence[VariedCall]) -> list[Array]:
    """Make a buffer for each call, as the pattern says."""
    if pattern.fresh:
        return [np.frombuffer(mmap(-1, call.nbytes, MAP_PRIVATE), call.dtype) for call in calls]
    rooms = [-(-(call.nbytes + pattern.offset) // _LINE) * _LINE for call in calls]
    ends = list(accumulate(rooms, initial=0))
    memory = np.empty(ends[-1] + _LINE, np.uint8)
    first = -memory.ctypes.data % _LINE + pattern.offset
    return [memory[first + start :][: call.nbytes].view(call.dtype)
            for start, call in zip(ends, calls, strict=False)]  # fmt: skip


def _times(communicator: MPI.Intracomm, bound: Sequence[BoundCall]) -> list[int]:
    """Make calls one after the other; gives the nanoseconds of each on this rank.

    The method is looked up at every call, as a program does.
    """
    stamps = [perf_counter_ns()]
    for method, arguments in bound:
        getattr(communicator, method)(*arguments)
        stamps.append(perf_counter_ns())
    return [after - before for before, after in pairwise(stamps)]


def _medians(blocks: Sequence[_Block], side: str) -> dict[str, float]:
    """Give the medians of a side over blocks, by name."""
    names = blocks[0].us[side]
    return {name: float(np.median([one.us[side][name] for one in blocks])) for name in names}


def heading(session: Session) -> list[str]:
    """Write the lines above the rows.

    Parameters
    ----------
    session : Session
        Holds the seed.

    Returns
    -------
    list of str
        Comments: where sizes come from, and the names of the columns.
    """
    return [
        f"# sizes are drawn from --seed {session.request.own['seed']}; native: mpi4py's methods",
        "# no barrier between calls; p50, p99 and mean of a block are those of its slowest rank;",
        "# a row holds their medians over its blocks; by mean: the speedup of the means",
        "#" + aligned(_WIDTHS, _WIDTHS.values())[1:],
    ]


def as_line(row: Row) -> str:
    """Write a row below `heading`.

    Parameters
    ----------
    row : dict
        One of `measure_varied`.

    Returns
    -------
    str
        One line.
    """
    times = [short(row[f"us_per_call_{name}"]) for name in ("p50", "p99", "mean")]
    ratios = [_ratio(row[key]) for key in ("speedup", "speedup_mean", "native_vs_native")]
    wrong = "-" if row["wrong"] is None else row["wrong"]
    words = [row["pattern"], row["block"], row["calls"], *times, short(row["native_us_p50"])]
    return aligned([*words, *ratios, wrong], _WIDTHS.values())


def _ratio(value: float) -> str:
    """Write a ratio; below a tenth with one more digit."""
    return f"{value:.2f}x" if value >= 0.1 else f"{value:.3f}x"


def _families(_context: click.Context, _option: click.Parameter, words: str) -> tuple[str, ...]:
    """Read ``--patterns``."""
    names = tuple(dict.fromkeys(words.split(",")))
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise UsageError(
            "bench --patterns", f"unknown {', '.join(unknown)}", f"choose {', '.join(FAMILIES)}"
        )
    return names


def _items(request: BenchRequest, name: str) -> list[Item]:
    """List the patterns that were asked for."""
    return [Item(name, "auto", pattern.high, pattern.name)
            for pattern in chosen(request.own["patterns"])]  # fmt: skip


def _rows(session: Session, item: Item) -> Iterator[Row]:
    by_name = {pattern.name: pattern for pattern in PATTERNS}
    return measure_varied(session, by_name[item.operation])


BENCHMARKS = (
    Benchmark(
        "varied",
        items=_items,
        measure=_rows,
        heading=heading,
        lines=lambda rows: [as_line(rows[-1])],
        options=(
            click.Option(
                ["--patterns"],
                default=",".join(FAMILIES),
                callback=_families,
                help=f"Calls of varied, comma-separated: {', '.join(FAMILIES)}; default all.",
            ),
            SEED,
        ),
    ),
)
