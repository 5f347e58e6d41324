"""The bandwidth from every rank to every other, all ranks busy: mpiGraph.

In shift d each rank sends to the rank d after it while it receives from the
rank d before it; the time of a pair is the receiver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from closeranks.jobs.bench.benches.osu_exchange import window
from closeranks.jobs.bench.benches.point_to_point import check_ranks, describe
from closeranks.jobs.bench.measuring.time_distribution import Timing, bandwidth

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import Session

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
        What `measure_matrix` returned.

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
        What `measure_matrix` returned.

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
