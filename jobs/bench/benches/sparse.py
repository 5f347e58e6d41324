"""The benchmarks ``sparse``, ``route`` and ``chunks``: data that few ranks want.

``sparse`` adds vectors of which few entries are stored, drawn at random on
each rank.  The other side is the communicator's own ``Allreduce`` of the whole
vector, in alternating blocks; a row has the time that the whole vector needs
at the wire's rate too.  ``--topk`` adds rows of `topk_allreduce`, of a vector
that is full.

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
from numpy.typing import NDArray

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, Item, TableColumn
from closeranks.jobs.bench.measuring.collective_facts import as_dtype, largest_exact
from closeranks.jobs.bench.measuring.network import PAYLOAD, nic_columns, wire
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import NO_BANDWIDTH, Call, Timing, clock, estimate

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.sparse import SparseVector
    from closeranks.jobs.bench.measuring.session import BenchRequest

Array = NDArray[Any]
Row = dict[str, Any]

#: Algorithms of `Communicator.Allreduce_sparse`.
_ALGORITHMS: Final = ("auto", "doubling", "split", "dense")
#: Algorithms of `closeranks.collectives.sparse.Route` and of chunks.
_HOPS: Final = ("auto", "flat", "two_hops")
#: Which share of the chunks a rank of ``chunks`` wants.
_WANTED: Final = 0.25
_DENSITIES: Final = "0.0001,0.001,0.01,0.1"
#: The algorithm of rows of `topk_allreduce`, and the types that it takes.
_TOPK: Final = "topk"
_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
#: Largest magnitude of all ranks together: few enough for ties, and sums are exact.
_MOST_DRAWN: Final = 1 << 24


def measure_sparse(session: Session, item: Item) -> Iterator[Row]:
    """Measure all densities of a vector; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    item : Item
        Bytes of the whole vector; an algorithm of
        `Communicator.Allreduce_sparse`, or "topk" for `topk_allreduce`.

    Yields
    ------
    dict
        A row a density, the same on every rank.
    """
    dtype = as_dtype(session.request.dtype)
    length = max(1, item.nbytes // dtype.itemsize)
    whole = np.ones(length, dtype)
    taken = np.empty_like(whole)

    def dense() -> None:
        session.comm.Allreduce(whole, taken)

    for nnz in _counts(session.request, length, item.algorithm):
        make = _of_largest if item.algorithm == _TOPK else _of_pairs
        ours, differing = make(session, item.algorithm, length, nnz)
        wrong = differing() if session.request.check else None
        yield _beside_dense(session, whole, nnz, ours, dense) | {
            "algorithm": item.algorithm, "wrong": wrong,
        }  # fmt: skip


def _counts(request: BenchRequest, length: int, algorithm: str = "auto") -> list[int]:
    """Return how many entries are drawn, in turn."""
    own = request.own
    if algorithm != _TOPK and own["nnz"] is not None:
        return [min(own["nnz"], length)]
    option = "topk" if algorithm == _TOPK else "density"
    return [max(1, round(share * length)) for share in _shares(f"--{option}", own[option])]


def _shares(option: str, text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < share <= 1 for share in found):
        raise UsageError(
            "bench sparse", f"{option} {text}", "give numbers above 0, at most 1, with commas"
        )
    return found


def _of_pairs(
    session: Session, algorithm: str, length: int, nnz: int
) -> tuple[Call, Callable[[], int]]:
    """Make a sum of random pairs, and what counts its wrong entries."""
    from closeranks.collectives.sparse import SparseVector

    draw = np.random.default_rng(session.plain.Get_rank())
    indices = np.sort(draw.choice(length, nnz, replace=False))
    values = draw.integers(1, 9, nnz).astype(as_dtype(session.request.dtype))
    vector = SparseVector(indices, values, length)

    def added() -> SparseVector:
        return session.comm.Allreduce_sparse(vector, algorithm=algorithm)

    def differing() -> int:
        total, there = _summed_whole(session, vector)
        return _all_differing(session, added(), np.flatnonzero(there), total)

    return _quiet(added), differing


def _of_largest(
    session: Session, _algorithm: str, length: int, k: int
) -> tuple[Call, Callable[[], int]]:
    """Make a sum of the largest entries of full vectors, and what counts wrong ones."""
    from closeranks.collectives.sparse import SparseVector, topk_allreduce

    draw = np.random.default_rng(session.plain.Get_rank())
    most = min(largest_exact(session.request.dtype), _MOST_DRAWN) // session.ranks
    x = draw.integers(-most, most + 1, length).astype(as_dtype(session.request.dtype))

    def added() -> tuple[SparseVector, Array]:
        return topk_allreduce(session.comm, x, k)

    def differing() -> int:
        offered = _largest(x, k)
        total, there = _summed_whole(session, SparseVector(offered, x[offered], length))
        some = np.flatnonzero(there)
        wanted = some[_largest(total[some], k)]
        found, residual = added()
        kept = x.copy()
        kept[np.intersect1d(offered, wanted, assume_unique=True)] = 0
        wrong = session.plain.allreduce(int(np.count_nonzero(residual != kept)))
        return _all_differing(session, found, wanted, total) + int(wrong)

    return _quiet(added), differing


def _largest(values: Array, k: int) -> Array:
    """Return the places of the k largest magnitudes; of equal ones the first."""
    magnitudes = np.abs(values.astype(np.float64))
    least = np.partition(magnitudes, -k)[-k]
    above = np.flatnonzero(magnitudes > least)
    tied = np.flatnonzero(magnitudes == least)[: k - len(above)]
    return np.sort(np.concatenate([above, tied]))


def _summed_whole(session: Session, vector: SparseVector) -> tuple[Array, Array]:
    """Add whole vectors by the library, and say which entries are there; collective."""
    dense, there = vector.to_dense(), np.zeros(vector.length, np.uint16)
    there[vector.indices] = 1
    if dense.dtype.itemsize == 2 and dense.dtype.kind not in "iu":
        dense = dense.astype(np.float32)  # the library may have no such type
    total, anywhere = np.empty_like(dense), np.empty_like(there)
    session.plain.Allreduce(dense, total)
    session.plain.Allreduce(there, anywhere)
    return total, anywhere


def _all_differing(session: Session, found: SparseVector, wanted: Array, total: Array) -> int:
    """Count the wrong entries of a result on all ranks; collective."""
    if not np.array_equal(found.indices, wanted):
        wrong = abs(len(wanted) - found.nnz) or 1
    else:
        wrong = int(np.count_nonzero(found.values != total[wanted]))
    return int(session.plain.allreduce(wrong))


def _beside_dense(session: Session, whole: Array, nnz: int, ours: Call, dense: Call) -> Row:
    """Measure a call and the sum of whole vectors in alternating blocks."""
    timings = _timed(session, {"ours": ours, "dense": dense}, whole.nbytes)
    row = {
        **describe(session, "sparse", whole.nbytes, timings["ours"]),
        **NO_BANDWIDTH,
        "dtype": whole.dtype.name,
        "op": "sum",
        "density": nnz / len(whole),
        "nnz": nnz,
        "bytes_sent": _sent(session, ours),
        "dense_us": timings["dense"].p50_us,
        "speedup": timings["dense"].p50_us / timings["ours"].p50_us,
        "wire_us": _wire_us(whole.nbytes),
    }
    return row | _counted(session, ours)


def _timed(session: Session, sides: dict[str, Call], nbytes: int) -> dict[str, Timing]:
    """Time calls in alternating blocks; collective."""
    seconds = [estimate(session.plain, call) for call in sides.values()]
    return clock(session.plain, sides, session.request.effort.schedule(seconds, nbytes))


def _counted(session: Session, call: Call) -> Row:
    """Read what NICs send, if that was asked for; collective."""
    return nic_columns(session.plain, call) if session.request.counters else {}


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
    return [Item(name, one, size) for size in request.sizes_of(name) for one in request.algorithms]


def _sparse_items(request: BenchRequest, name: str) -> list[Item]:
    largest = request.sizes_of(name) if request.own["topk"] else ()
    return _items(request, name) + [Item(name, _TOPK, size) for size in largest]


def _check_sparse(request: BenchRequest) -> None:
    _check_names("sparse", request, _ALGORITHMS)
    _counts(request, 1)
    if request.own["topk"]:
        _counts(request, 1, _TOPK)
        if request.dtype not in _FLOATS:
            raise UsageError(
                "bench sparse", f"--topk of {request.dtype}", f"one of {', '.join(_FLOATS)}"
            )


def _check_names(name: str, request: BenchRequest, known: tuple[str, ...]) -> None:
    for algorithm in request.algorithms:
        if algorithm not in known:
            raise UsageError(
                f"bench {name}", f"no algorithm {algorithm}", f"one of {', '.join(known)}"
            )


def measure_route(session: Session, item: Item) -> Iterator[Row]:
    """Measure tokens of one size on their way to experts, and back; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    item : Item
        Bytes of a token, and an algorithm of
        `closeranks.collectives.sparse.Route`.

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
    tokens = np.full((own["tokens"], max(1, item.nbytes // 4)), rank + 1, np.float32)
    route = Route(session.comm, destinations, algorithm=item.algorithm)
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


def measure_chunks(session: Session, item: Item) -> Iterator[Row]:
    """Measure chunks of one size, four of each rank; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    item : Item
        Bytes of a chunk, and an algorithm of
        `closeranks.collectives.sparse.allgather_chunks`.

    Yields
    ------
    dict
        A row for each direction, the same on every rank.
    """
    from closeranks.collectives.sparse import allgather_chunks, reduce_scatter_chunks

    rank, count = session.plain.Get_rank(), 4 * session.ranks
    owner = np.arange(count) % session.ranks
    wanted = np.random.default_rng(1).random((count, session.ranks)) < _WANTED
    items = max(1, item.nbytes // 4)
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
            session.comm, given, owner, wanted, algorithm=item.algorithm
        ),
        "reduce_scatter": lambda: reduce_scatter_chunks(
            session.comm, parts, owner, wanted, algorithm=item.algorithm
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
    timings = _timed(session, sides, nbytes)
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
    return row | _counted(session, sides["ours"])


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


def _check_route(request: BenchRequest) -> None:
    _check_names("route", request, _HOPS)
    own = request.own
    if own["choices"] > own["experts"]:
        raise UsageError(
            "bench route", f"--choices {own['choices']} of {own['experts']} experts",
            "choose at most as many as there are",
        )  # fmt: skip


BENCHMARKS = (
    Benchmark(
        "sparse",
        items=_sparse_items,
        measure=measure_sparse,
        check=_check_sparse,
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
            click.Option(
                ["--topk"],
                help="Also topk_allreduce, with these shares of the entries of sparse as k.",
            ),
        ),
    ),
    Benchmark(
        "route",
        items=_items,
        measure=measure_route,
        check=_check_route,
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
        measure=measure_chunks,
        check=lambda request: _check_names("chunks", request, _HOPS),
        columns=_BESIDE_NATIVE,
        test="Chunk Latency Test",
        sizes="256K",
        titled=False,
    ),
)  # fmt: skip
