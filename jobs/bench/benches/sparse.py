"""The benchmarks ``sparse``, ``route`` and ``chunks``: data that few ranks want.

``sparse`` adds vectors of which few entries are stored, drawn at random on
each rank.  The other side is the communicator's own ``Allreduce`` of the whole
vector, in alternating blocks; a row has the time that the whole vector needs
at the wire's rate too.

``route`` sends tokens to experts that are drawn at random, and back.  The
other side is the library's ``Alltoallv`` of one row for each token and choice.

``chunks`` gives ranks the arrays that they want, a quarter of all.  The other
side is the library's ``Allgather`` of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, Item, TableColumn
from closeranks.jobs.bench.measuring.collective_facts import as_dtype
from closeranks.jobs.bench.measuring.network import PAYLOAD, nic_columns, wire
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, Call, clock, estimate

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.sparse import SparseVector
    from closeranks.jobs.bench.measuring.session import BenchRequest

Row = dict[str, Any]

#: Algorithms of `Communicator.Allreduce_sparse`.
_ALGORITHMS: Final = ("auto", "doubling", "split", "dense")
#: Algorithms of `closeranks.collectives.sparse.Route` and of chunks.
_HOPS: Final = ("auto", "flat", "two_hops")
#: Which share of the chunks a rank of ``chunks`` wants.
_WANTED: Final = 0.25
_DENSITIES: Final = "0.0001,0.001,0.01,0.1"


def measure_sparse(session: Session, nbytes: int, algorithm: str) -> Iterator[Row]:
    """Measure all densities of a vector; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    nbytes : int
        Of the whole vector.
    algorithm : str
        Of `Communicator.Allreduce_sparse`.

    Yields
    ------
    dict
        A row a density, the same on every rank.
    """
    dtype = as_dtype(session.request.dtype)
    length = max(1, nbytes // dtype.itemsize)
    whole = np.ones(length, dtype)
    taken = np.empty_like(whole)

    def dense() -> None:
        session.comm.Allreduce(whole, taken)

    for nnz in _counts(session.request, length):
        vector = _drawn(session, length, nnz, dtype)
        yield _measured(session, vector, algorithm, dense)


def _counts(request: BenchRequest, length: int) -> list[int]:
    """Return how many entries are drawn, in turn."""
    if request.own["nnz"] is not None:
        return [min(request.own["nnz"], length)]
    return [max(1, round(density * length)) for density in _densities(request)]


def _densities(request: BenchRequest) -> list[float]:
    text = request.own["density"]
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < density <= 1 for density in found):
        raise UsageError(
            "bench sparse", f"--density {text}", "give numbers above 0, at most 1, with commas"
        )
    return found


def _drawn(session: Session, length: int, nnz: int, dtype: np.dtype[Any]) -> SparseVector:
    from closeranks.collectives.sparse import SparseVector

    draw = np.random.default_rng(session.plain.Get_rank())
    indices = np.sort(draw.choice(length, nnz, replace=False))
    return SparseVector(indices, draw.integers(1, 9, nnz).astype(dtype), length)


def _measured(session: Session, vector: SparseVector, algorithm: str, dense: Call) -> Row:
    def ours() -> None:
        session.comm.Allreduce_sparse(vector, algorithm=algorithm)

    wrong = _differing(session, vector, algorithm) if session.request.check else None
    sides: dict[str, Call] = {"ours": ours, "dense": dense}
    seconds = [estimate(session.plain, call) for call in sides.values()]
    nbytes = vector.length * vector.dtype.itemsize
    timings = clock(session.plain, sides, session.request.effort.schedule(seconds, nbytes))
    row = {
        **describe(session, "sparse", nbytes, timings["ours"]),
        **NO_BANDWIDTH,
        "algorithm": algorithm,
        "dtype": vector.dtype.name,
        "op": "sum",
        "wrong": wrong,
        "density": vector.nnz / vector.length,
        "nnz": vector.nnz,
        "bytes_sent": _sent(session, ours),
        "dense_us": timings["dense"].p50_us,
        "speedup": timings["dense"].p50_us / timings["ours"].p50_us,
        "wire_us": _wire_us(nbytes),
    }
    if session.request.counters:
        row |= nic_columns(session.plain, ours)
    return row


def _differing(session: Session, vector: SparseVector, algorithm: str) -> int:
    """Compare with the sum of whole vectors; collective."""
    found = session.comm.Allreduce_sparse(vector, algorithm=algorithm)
    total, there = np.zeros(vector.length, vector.dtype), np.zeros(vector.length, np.uint8)
    session.plain.Allreduce(vector.to_dense(), total)
    there[vector.indices] = 1
    session.plain.Allreduce(there.copy(), there)
    wanted = np.flatnonzero(there)
    if not np.array_equal(found.indices, wanted):
        wrong = abs(len(wanted) - found.nnz) or 1
    else:
        wrong = int(np.count_nonzero(found.values != total[wanted]))
    return int(session.plain.allreduce(wrong))


def _sent(session: Session, call: Call) -> int:
    """Count the bytes that one call sends from the rank that sends most; collective."""

    def total() -> int:
        return sum(session.comm.statistics().bytes_per_level.values())

    before = total()
    call()
    return int(max(session.plain.allgather(total() - before)))


def _wire_us(nbytes: int) -> float | None:
    """Return the least time of the whole vector over a lab's wire."""
    link = wire()
    if link is None:
        return None
    crossing = 2 * (link.nodes - 1) / link.nodes * nbytes
    return 1e6 * crossing / (PAYLOAD * link.bytes_per_s)


def _items(request: BenchRequest, name: str) -> list[Item]:
    sizes = request.own_sizes.get(name, request.sizes)
    return [Item(name, one, size) for size in sizes for one in request.algorithms]


def _measure(session: Session, item: Item) -> Iterator[Row]:
    return measure_sparse(session, item.nbytes, item.algorithm)


def _check(request: BenchRequest) -> None:
    _counts(request, 1)
    for algorithm in request.algorithms:
        if algorithm not in _ALGORITHMS:
            raise UsageError(
                "bench sparse", f"no algorithm {algorithm}", f"one of {', '.join(_ALGORITHMS)}"
            )


def measure_route(session: Session, nbytes: int, algorithm: str) -> Iterator[Row]:
    """Measure tokens of one size on their way to experts, and back; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    nbytes : int
        Of a token.
    algorithm : str
        Of `closeranks.collectives.sparse.Route`.

    Yields
    ------
    dict
        A row for `dispatch` and one for `combine`, the same on every rank.
    """
    from closeranks.collectives.sparse import Route

    own, rank = session.request.own, session.plain.Get_rank()
    draw = np.random.default_rng(rank)
    chosen = draw.random((own["tokens"], own["experts"])).argsort(axis=1)[:, : own["choices"]]
    destinations = chosen % session.ranks
    tokens = np.full((own["tokens"], max(1, nbytes // 4)), rank + 1, np.float32)
    route = Route(session.comm, destinations, algorithm=algorithm)
    arrived = route.dispatch(tokens)
    sums = route.combine(arrived)
    distinct = np.diff(np.sort(destinations, axis=1), axis=1, prepend=-1) != 0
    wrong = int(np.count_nonzero(arrived != (route.sources + 1)[:, None]))
    wrong += int(np.count_nonzero(sums != tokens * distinct.sum(axis=1)[:, None]))
    native = _row_a_choice(session.plain, tokens, destinations)
    calls: dict[str, Call] = {
        "dispatch": lambda: route.dispatch(tokens), "combine": lambda: route.combine(arrived),
    }  # fmt: skip
    for name, call in calls.items():
        yield _beside_native(session, "route", tokens[0].nbytes, name, call, native, wrong)


def _row_a_choice(plain: MPI.Intracomm, tokens: Any, destinations: Any) -> Call:
    """Bind an Alltoallv of one row for each token and choice."""
    order = np.argsort(destinations, axis=None, kind="stable")
    width = tokens.shape[1]
    sent = np.bincount(destinations.reshape(-1), minlength=plain.Get_size())
    coming = np.empty_like(sent)
    plain.Alltoall(sent, coming)
    rows = order // destinations.shape[1]
    into = np.empty((int(coming.sum()), width), np.float32)

    def call() -> None:
        plain.Alltoallv([tokens[rows], sent * width], [into, coming * width])

    return call


def measure_chunks(session: Session, nbytes: int, algorithm: str) -> Iterator[Row]:
    """Measure chunks of one size, four of each rank; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    nbytes : int
        Of a chunk.
    algorithm : str
        Of `closeranks.collectives.sparse.allgather_chunks`.

    Yields
    ------
    dict
        A row for each direction, the same on every rank.
    """
    from closeranks.collectives.sparse import allgather_chunks, reduce_scatter_chunks

    rank, count = session.plain.Get_rank(), 4 * session.ranks
    owner = np.arange(count) % session.ranks
    wanted = np.random.default_rng(1).random((count, session.ranks)) < _WANTED
    items = max(1, nbytes // 4)
    given = {
        number: np.full(items, number, np.float32)
        for number in np.flatnonzero(owner == rank).tolist()
    }
    parts = {
        number: np.full(items, number, np.float32)
        for number in np.flatnonzero(wanted[:, rank]).tolist()
    }
    mine, everything = np.zeros(4 * items, np.float32), np.empty(count * items, np.float32)
    calls: dict[str, Callable[[], dict[int, Any]]] = {
        "allgather": lambda: allgather_chunks(
            session.comm, given, owner, wanted, algorithm=algorithm
        ),
        "reduce_scatter": lambda: reduce_scatter_chunks(
            session.comm, parts, owner, wanted, algorithm=algorithm
        ),
    }
    for name, call in calls.items():
        found, terms = call(), wanted.sum(axis=1) if name == "reduce_scatter" else None
        wrong = sum(
            int(np.count_nonzero(one != number * (1 if terms is None else terms[number])))
            for number, one in found.items()
        )

        def native() -> None:
            session.plain.Allgather(mine, everything)

        yield _beside_native(session, "chunks", 4 * items, name, call, native, wrong)


def _beside_native(
    session: Session, name: str, nbytes: int, what: str, ours: Callable[[], object],
    native: Call, wrong: int,
) -> Row:  # fmt: skip
    """Measure a call and the library's in alternating blocks."""
    sides: dict[str, Call] = {"ours": _quiet(ours), "native": native}
    seconds = [estimate(session.plain, call) for call in sides.values()]
    timings = clock(session.plain, sides, session.request.effort.schedule(seconds, nbytes))
    row = {
        **describe(session, name, nbytes, timings["ours"]),
        **NO_BANDWIDTH,
        "algorithm": what,
        "dtype": "float32",
        "wrong": session.plain.allreduce(wrong) if session.request.check else None,
        "bytes_sent": _sent(session, sides["ours"]),
        "native_us_p50": timings["native"].p50_us,
        "speedup": timings["native"].p50_us / timings["ours"].p50_us,
    }
    if session.request.counters:
        row |= nic_columns(session.plain, sides["ours"])
    return row


def _quiet(call: Callable[[], object]) -> Call:
    def called() -> None:
        call()

    return called


_NIC_COLUMN: Final = TableColumn("nic_tx_bytes_max", "NIC bytes", 11, lambda value: f"{value:.0f}")
_BESIDE_NATIVE: Final = (
    TableColumn("bytes_sent", "sent", 10, str),
    TableColumn("native_us_p50", "native us", 11, short),
    TableColumn("speedup", "speedup", 8, lambda value: f"{value:.2f}x"),
    _NIC_COLUMN,
)


def _check_hops(request: BenchRequest) -> None:
    own = request.own
    if own["choices"] > own["experts"]:
        raise UsageError(
            "bench route", f"--choices {own['choices']} of {own['experts']} experts",
            "choose at most as many as there are",
        )  # fmt: skip
    for algorithm in request.algorithms:
        if algorithm not in _HOPS:
            raise UsageError(
                "bench route", f"no algorithm {algorithm}", f"one of {', '.join(_HOPS)}"
            )


BENCHMARKS = (
    Benchmark(
        "sparse",
        items=_items,
        measure=_measure,
        check=_check,
        columns=(
            TableColumn("density", "density", 8, short),
            TableColumn("nnz", "entries", 9, str),
            TableColumn("bytes_sent", "sent", 10, str),
            TableColumn("dense_us", "dense us", 10, short),
            TableColumn("speedup", "speedup", 8, lambda value: f"{value:.2f}x"),
            TableColumn("wire_us", "wire us", 10, short),
            _NIC_COLUMN,
        ),
        test="Sparse Allreduce Latency Test",
        sizes="16M",
        titled=False,
        options=(
            click.Option(
                ["--density"], default=_DENSITIES, show_default=True,
                help="Shares of the entries that sparse stores.",
            ),
            click.Option(
                ["--nnz"], type=click.IntRange(0),
                help="Entries that sparse stores, instead of shares.",
            ),
        ),
    ),
    Benchmark(
        "route",
        items=_items,
        measure=lambda session, item: measure_route(session, item.nbytes, item.algorithm),
        check=_check_hops,
        columns=_BESIDE_NATIVE,
        test="Route Latency Test",
        sizes="2K",
        titled=False,
        options=(
            click.Option(
                ["--tokens"], type=click.IntRange(1, 1 << 24), default=2048, show_default=True,
                help="Rows that route sends from each rank.",
            ),
            click.Option(
                ["--experts"], type=click.IntRange(1, 1 << 16), default=64, show_default=True,
                help="Experts of route, on all ranks in turn.",
            ),
            click.Option(
                ["--choices"], type=click.IntRange(1, 1 << 10), default=8, show_default=True,
                help="Experts of a row of route.",
            ),
        ),
    ),
    Benchmark(
        "chunks",
        items=_items,
        measure=lambda session, item: measure_chunks(session, item.nbytes, item.algorithm),
        check=_check_hops,
        columns=_BESIDE_NATIVE,
        test="Chunk Latency Test",
        sizes="256K",
        titled=False,
    ),
)  # fmt: skip
