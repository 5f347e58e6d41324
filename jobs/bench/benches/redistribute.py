"""The benchmark ``redistribute``: a matrix from one layout to another.

The library's side is the call that a program would make by hand: Alltoallw of
subarray types, Allgatherv, or Reduce_scatter.  Both sides write into arrays
that are there before; the size is that of the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import (
    Benchmark,
    Item,
    TableColumn,
    an_item_a_size,
)
from closeranks.jobs.bench.measuring.collective_facts import as_dtype
from closeranks.jobs.bench.measuring.network import nic_columns
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import Call, bandwidth, clock, estimate

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.partitioning import Layout

Row = dict[str, Any]
Array = NDArray[Any]


def measure_redistribute(session: Session, nbytes: int) -> Iterator[Row]:
    """Measure all pairs of layouts for one size; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    nbytes : int
        Of the whole matrix, at most.

    Yields
    ------
    dict
        A row a pair of layouts, the same on every rank.
    """
    from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split

    dtype = as_dtype(session.request.dtype)
    side = max(1, isqrt(nbytes // dtype.itemsize))
    mesh = Mesh({"rank": session.ranks})

    def layout(how: Any) -> Layout:
        return Layout((side, side), [how], mesh=mesh)

    rows, columns = layout(Split(0)), layout(Split(1))
    for name, source, target, by_hand in (
        ("rows to columns", rows, columns, _alltoallw),
        ("rows to all", rows, layout(Broadcast()), _allgatherv),
        ("sum to rows", layout(Partial()), rows, _reduce_scatter),
    ):
        yield _measured(session, _Pair(session, dtype, source, target), name, by_hand)


class _Pair:
    """A matrix in one layout, and room for it in the other, once a side."""

    def __init__(
        self, session: Session, dtype: np.dtype[Any], source: Layout, target: Layout
    ) -> None:
        self.plain: MPI.Intracomm = session.plain
        self.source, self.target, self.dtype = source, target, dtype
        rank = session.plain.Get_rank()
        self.whole = (np.arange(np.prod(source.global_shape)) % 97).astype(dtype)
        self.whole = self.whole.reshape(source.global_shape)
        self.given = np.ascontiguousarray(self.whole[source.box(rank)])
        self.ours, self.native = (np.zeros(target.local_shape(rank), dtype) for _ in range(2))

    def differing(self, taken: Array, terms: int) -> int:
        """Count wrong elements of a result that adds up equal terms; local."""
        right = self.whole[self.target.box(self.plain.Get_rank())] * self.dtype.type(terms)
        return int(np.count_nonzero(taken != right))


def _measured(
    session: Session, pair: _Pair, name: str, by_hand: Callable[[_Pair], Call]
) -> Row:  # fmt: skip
    from closeranks.partitioning import Partial, conversion, redistribute

    def ours() -> None:
        redistribute(session.comm, pair.given, pair.source, pair.target, out=pair.ours)

    sides: dict[str, Call] = {"ours": ours, "native": by_hand(pair)}
    terms = session.ranks if isinstance(pair.source.placements[0], Partial) else 1
    seconds = [estimate(session.plain, call) for call in sides.values()]
    wrong = pair.differing(pair.ours, terms) + pair.differing(pair.native, terms)
    nbytes = pair.whole.nbytes
    timings = clock(session.plain, sides, session.request.effort.schedule(seconds, nbytes))
    ours_us, native_us = timings["ours"].p50_us, timings["native"].p50_us
    moves = conversion(pair.source, pair.target, itemsize=pair.dtype.itemsize,
                       topology=session.comm.hierarchy)  # fmt: skip
    row = {
        **describe(session, "redistribute", nbytes, timings["ours"]),
        **bandwidth(nbytes // session.ranks, ours_us, 1 - 1 / session.ranks),
        "algorithm": name,
        "dtype": pair.dtype.name,
        "op": "sum" if terms > 1 else "none",
        "wrong": session.plain.allreduce(wrong) if session.request.check else None,
        "native_us_p50": native_us,
        "speedup": native_us / ours_us,
        "bytes_received": sum(moves.received(rank) for rank in range(session.ranks)),
        "bytes_least": _least(pair, session.ranks),
    }
    if session.request.counters:
        row |= nic_columns(session.plain, ours)
        row["planned_bytes"] = moves.group_bytes_per_level.get("node", 0)
    return row


def _least(pair: _Pair, ranks: int) -> int:
    """Count the bytes that must move between ranks."""
    from closeranks.partitioning import Partial

    if isinstance(pair.source.placements[0], Partial):
        return pair.whole.nbytes * (ranks - 1)
    total = 0
    for rank in range(ranks):
        target, source = pair.target.box(rank), pair.source.box(rank)
        shared = [
            max(0, min(t.stop, s.stop) - max(t.start, s.start))
            for t, s in zip(target, source, strict=True)
        ]
        total += int(np.prod(pair.target.local_shape(rank)) - np.prod(shared))
    return total * pair.dtype.itemsize


def _alltoallw(pair: _Pair) -> Call:
    """Bind Alltoallw of subarray types to the matrix."""
    from mpi4py import MPI

    rank, ranks = pair.plain.Get_rank(), pair.plain.Get_size()
    element = MPI._typedict[pair.dtype.char]

    def types(shape: Sequence[int], boxes: Sequence[Sequence[tuple[int, int]]]) -> list[Any]:
        """Make a committed type a rank; bytes of count 0 where nothing goes."""
        made = []
        for box in boxes:
            lengths = [stop - start for start, stop in box]
            if not all(lengths):
                made.append(MPI.BYTE)
                continue
            starts = [start for start, _ in box]
            made.append(element.Create_subarray(shape, lengths, starts).Commit())
        return made

    rows = [pair.source.bounds_of(peer)[0] for peer in range(ranks)]
    columns = [pair.target.bounds_of(peer)[1] for peer in range(ranks)]
    mine = rows[rank][1] - rows[rank][0], columns[rank][1] - columns[rank][0]
    out = types(pair.given.shape, [((0, mine[0]), cut) for cut in columns])
    into = types(pair.native.shape, [(cut, (0, mine[1])) for cut in rows])

    def message(array: Array, kinds: list[Any]) -> tuple[Any, ...]:
        counts = [0 if kind == MPI.BYTE else 1 for kind in kinds]
        return array, (counts, [0] * ranks), kinds

    sent, received = message(pair.given, out), message(pair.native, into)
    return lambda: pair.plain.Alltoallw(sent, received)


def _allgatherv(pair: _Pair) -> Call:
    """Bind Allgatherv of rows to the matrix."""
    counts = [int(np.prod(pair.source.local_shape(r))) for r in range(pair.plain.Get_size())]
    return lambda: pair.plain.Allgatherv(pair.given, [pair.native, counts])


def _reduce_scatter(pair: _Pair) -> Call:
    """Bind Reduce_scatter of rows to the matrix."""
    counts = [int(np.prod(pair.target.local_shape(r))) for r in range(pair.plain.Get_size())]
    return lambda: pair.plain.Reduce_scatter(pair.given, pair.native, counts)


def _measure(session: Session, item: Item) -> Iterator[Row]:
    return measure_redistribute(session, item.nbytes)


BENCHMARKS = (
    Benchmark(
        "redistribute",
        items=an_item_a_size(),
        measure=_measure,
        columns=(
            TableColumn("native_us_p50", "native us", 11, short),
            TableColumn("speedup", "speedup", 8, lambda value: f"{value:.2f}x"),
            TableColumn("bytes_received", "received", 11, str),
            TableColumn("bytes_least", "least", 11, str),
            TableColumn("nic_tx_bytes_max", "NIC bytes", 11, lambda value: f"{value:.0f}"),
            TableColumn("planned_bytes", "planned", 11, str),
        ),
        test="Redistribution Latency Test",
        sizes="1M:64M:8",
        titled=False,
    ),
)
