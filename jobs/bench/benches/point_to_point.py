"""Messages of one size between pairs of ranks, as the OSU benchmarks send.

``pingpong`` makes blocking calls; ``bandwidth``, ``bibandwidth`` and ``pairs``
make windows of non-blocking sends, each answered with one short message.

``matrix`` takes the bandwidth from every rank to every other while all ranks
are busy, as mpiGraph does.  In shift d each rank sends to the rank d after it
while it receives from the rank d before it.  The time of a pair is the
receiver's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import Benchmark, Item, an_item_a_size
from closeranks.jobs.bench.measuring.number_text import show_bytes
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import Call, Timing, bandwidth, clock, estimate

if TYPE_CHECKING:
    from mpi4py import MPI


_WINDOW = 64
_IN_FLIGHT = 8 << 20


def window(nbytes: int) -> int:
    """Count the messages of a window.

    Parameters
    ----------
    nbytes : int
        Size of one.

    Returns
    -------
    int
        64 as in OMB, fewer where that would exceed 8 MiB, at least 1.
    """
    return max(1, min(_WINDOW, _IN_FLIGHT // nbytes))


class Exchange:
    """Messages of one size between this rank and a partner.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator.
    partner : int, optional
        The other rank; None for a rank that only looks on.
    first : bool
        Whether this rank begins.
    nbytes : int
        Size of a message.
    """

    def __init__(self, comm: MPI.Intracomm, partner: int | None, first: bool, nbytes: int) -> None:
        self._comm, self._partner, self._first = comm, partner, first
        self._window = window(nbytes)
        self._out = self._content(comm.Get_rank(), nbytes)
        self._in = np.zeros(nbytes, np.uint8)
        self._short = np.zeros(4, np.uint8)
        self._receives = False

    def pingpong(self) -> None:
        """Send one message there and one back."""
        if self._partner is None:
            return
        self._receives = True
        if self._first:
            self._comm.Send(self._out, self._partner)
            self._comm.Recv(self._in, self._partner)
        else:
            self._comm.Recv(self._in, self._partner)
            self._comm.Send(self._out, self._partner)

    def one_way(self) -> None:
        """Send a window from the first rank, and a short answer back."""
        if self._partner is None:
            return
        if self._first:
            self._finish(self._send())
            self._comm.Recv(self._short, self._partner, 1)
        else:
            self._finish(self._receive())
            self._comm.Send(self._short, self._partner, 1)

    def both_ways(self) -> None:
        """Send windows in both directions at once."""
        if self._partner is not None:
            self._finish(self._receive() + self._send())

    def wrong(self) -> int:
        """Count wrong elements of the last message received here; local."""
        if self._partner is None or not self._receives:
            return 0
        expected = self._content(self._partner, len(self._in))
        return int(np.count_nonzero(self._in != expected))

    @staticmethod
    def _content(rank: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Fill a message with a pattern of its sender."""
        return np.resize(np.arange(1 + rank % 5, 252, dtype=np.uint8), nbytes)

    def _send(self) -> list[MPI.Request]:
        assert self._partner is not None
        return [self._comm.Isend(self._out, self._partner) for _ in range(self._window)]

    def _receive(self) -> list[MPI.Request]:
        assert self._partner is not None
        self._receives = True
        return [self._comm.Irecv(self._in, self._partner) for _ in range(self._window)]

    def _finish(self, requests: list[MPI.Request]) -> None:
        from mpi4py import MPI

        MPI.Request.Waitall(requests)


Row = dict[str, Any]

_REPEAT = 10


def measure_matrix(session: Session, nbytes: int) -> list[Row]:
    """Measure all ordered pairs of ranks; collective.

    Parameters
    ----------
    session : Session
        Where.
    nbytes : int
        Size of a message; a window of them is sent.

    Returns
    -------
    list of dict
        A row for each ordered pair, with ``source`` and ``target``; the same
        on every rank.
    """
    check_ranks(session, "matrix")
    ranks, rank = session.ranks, session.plain.Get_rank()
    repeat = session.request.effort.iterations or _repeat(session, nbytes)
    seconds = np.zeros((ranks, ranks, repeat))
    wrong = np.zeros((ranks, ranks), np.int64)
    for shift in range(1, ranks):
        source = (rank - shift) % ranks
        seconds[source, rank], wrong[source, rank] = _shift(session, shift, nbytes, repeat)
    seconds, wrong = session.plain.allreduce(seconds), session.plain.allreduce(wrong)
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return [_row(session, nbytes, pair, seconds[pair], int(wrong[pair])) for pair in pairs]


def as_table(rows: Sequence[Row]) -> list[str]:
    """Lay the rows of one size out as a square of GB/s.

    Parameters
    ----------
    rows : sequence of dict
        As `measure_matrix` returns them.

    Returns
    -------
    list of str
        Comments: one line a sender, one column a receiver.
    """
    square = bandwidths(rows)
    head = "#  GB/s from" + "".join(f"{f'to {target}':>9}" for target in range(len(square)))
    lines = [head]
    for source, row in enumerate(square):
        cells = "".join(f"{'-':>9}" if np.isnan(one) else f"{one:9.3f}" for one in row)
        lines.append(f"# {source:>10}{cells}")
    return lines


def bandwidths(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    """Arrange the bandwidths of one size by sender and receiver.

    Parameters
    ----------
    rows : sequence of dict
        As `measure_matrix` returns them.

    Returns
    -------
    ndarray, shape (ranks, ranks), dtype float64
        GB/s; NaN on the diagonal.
    """
    ranks = rows[0]["ranks"]
    square = np.full((ranks, ranks), np.nan)
    for row in rows:
        square[row["source"], row["target"]] = row["algbw_GBps"]
    return square


def _repeat(session: Session, nbytes: int) -> int:
    """Choose how often: ten times, less where the budget does not allow it."""
    seconds, _ = _shift(session, 1, nbytes, 1)
    slowest = float(max(session.plain.allgather(float(seconds[0]))))
    affordable = session.request.effort.budget_s / max(slowest * (session.ranks - 1), 1e-9)
    return max(1, min(_REPEAT, int(affordable)))


def _shift(
    session: Session, shift: int, nbytes: int, repeat: int
) -> tuple[npt.NDArray[np.float64], int]:
    """Time the windows that arrive here in one shift; count wrong elements."""
    from mpi4py import MPI

    comm, rank, ranks = session.plain, session.plain.Get_rank(), session.ranks
    source, target = (rank - shift) % ranks, (rank + shift) % ranks
    messages = window(nbytes)
    out, arrived = np.full(nbytes, rank % 251, np.uint8), np.full(nbytes, 255, np.uint8)
    seconds = np.zeros(repeat)
    for i in range(repeat):
        comm.Barrier()
        start = perf_counter()
        incoming = [comm.Irecv(arrived, source) for _ in range(messages)]
        outgoing = [comm.Isend(out, target) for _ in range(messages)]
        MPI.Request.Waitall(incoming)
        seconds[i] = perf_counter() - start
        MPI.Request.Waitall(outgoing)
    return seconds, int(np.count_nonzero(arrived != source % 251))


def _row(
    session: Session,
    nbytes: int,
    pair: tuple[int, int],
    seconds: npt.NDArray[np.float64],
    wrong: int,
) -> Row:
    """Make the row of one pair; times are per message."""
    messages = window(nbytes)
    timing = Timing(seconds / messages, float(seconds.mean()) / messages, len(seconds), False)
    return {
        **describe(session, "matrix", nbytes, timing),
        **bandwidth(nbytes, timing.p50_us, 1.0),
        "wrong": wrong if session.request.check else None,
        "source": pair[0],
        "target": pair[1],
        "window": messages,
    }


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


def _rows(session: Session, item: Item) -> Iterator[Row]:
    yield measure_points(session, item.name, item.nbytes)


def _matrix_lines(rows: Sequence[Row]) -> list[str]:
    """Lay a matrix out when its last row is there."""
    ranks = rows[0]["ranks"]
    if len(rows) < ranks * (ranks - 1):
        return []
    return [f"#  {show_bytes(rows[0]['size_bytes'])} messages", *as_table(rows)]


_MB = "Bandwidth (MB/s)"
_BETWEEN_TWO = (
    ("pingpong", "Latency Test", "Latency (us)"),
    ("bandwidth", "Bandwidth Test", _MB),
    ("bibandwidth", "Bi-Directional Bandwidth Test", _MB),
    ("pairs", "Multiple Bandwidth Test", _MB),
)

BENCHMARKS = (
    *(
        Benchmark(
            name,
            items=an_item_a_size("native"),
            measure=_rows,
            test=test,
            unit=unit,
            in_all=True,
        )
        for name, test, unit in _BETWEEN_TWO
    ),
    Benchmark(
        "matrix",
        items=an_item_a_size("native"),
        measure=lambda session, item: measure_matrix(session, item.nbytes),
        lines=_matrix_lines,
        test="Pairwise Bandwidth Test",
        unit=_MB,
        sizes="1M",
        in_all=True,
    ),
)
