"""The benchmark ``init``: from MPI_Init to the first large all-reduce.

A process that has read a command line has imported half of the package, so
each rank becomes another one: `become_fresh` replaces the program by
`closeranks.jobs.bench.benches.init_program`, before MPI has started.  That
takes the times first and then runs the same command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, Item, one_item
from closeranks.jobs.bench.measuring.timing import agree, bandwidth

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]

#: Bytes of the first large all-reduce.
NBYTES = 16 << 20
#: What is timed, in order; the first comes before all that counts.
PARTS = ("mpi_init_s", "import_s", "open_s", "small_s", "load_s", "large_s")
_FRESH = "closeranks.jobs.bench.benches.init_program"
_MEANINGS = {
    "import_s": "importing closeranks and NumPy",
    "open_s": "closeranks.init: discovery, links, the library's speed",
    "small_s": "first all-reduce of 16 bytes",
    "load_s": "compiled code from the disk, or compiling it",
    "large_s": "first all-reduce of 16 MiB",
}


class _Taken:
    """Times that this process has taken while it started."""

    laps: Mapping[str, float] | None = None
    wrong = 0


def take(laps: Mapping[str, float], wrong: int) -> None:
    """Keep what a fresh process has measured.  Local.

    Parameters
    ----------
    laps : mapping of str to float
        Seconds of each of `PARTS`.
    wrong : int
        Elements of the first results that are wrong.
    """
    _Taken.laps, _Taken.wrong = laps, wrong


def become_fresh(words: list[str]) -> None:
    """Replace this program by a fresh one that times its start; local.

    Returns if this is such a program.

    Parameters
    ----------
    words : list of str
        The command line after ``closeranks``.
    """
    if _Taken.laps is None:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", _FRESH, *words])


def measure_start(session: Session) -> Row:
    """Report what the ranks measured while they started; collective.

    Parameters
    ----------
    session : Session
        Where.

    Returns
    -------
    dict
        The row, the same on every rank: ``seconds`` is that of the slowest
        rank, and every part too, so that they add up to no less.

    Raises
    ------
    UsageError
        If this process did not take the times.
    """
    if _Taken.laps is None:
        raise UsageError("bench init", "MPI has started already", "start it as a command")
    laps = [_Taken.laps[part] for part in PARTS]
    parts = agree(session.plain, laps, 1, False).seconds
    timing = agree(session.plain, [sum(laps[1:])], 1, False)
    wrong = session.plain.allreduce(_Taken.wrong)
    return {
        **describe(session, "init", NBYTES, timing),
        **bandwidth(NBYTES, float(np.max(timing.seconds)) * 1e6, 1.0),
        "algorithm": "auto",
        "dtype": "float32",
        "op": "sum",
        "wrong": wrong if session.request.check else None,
        "seconds": timing.p50_us * 1e-6,
        **{part: float(s) for part, s in zip(PARTS, parts, strict=True)},
    }


def as_lines(row: Row) -> list[str]:
    """Write a row as text.

    Parameters
    ----------
    row : dict
        Of `measure_start`.

    Returns
    -------
    list of str
        One line a part.
    """
    lines = [f"#   seconds  slowest rank; MPI_Init before that: {row['mpi_init_s']:.3f}"]
    lines += [f"  {row[part]:9.3f}  {meaning}" for part, meaning in _MEANINGS.items()]
    wrong = "not checked" if row["wrong"] is None else f"{row['wrong']} wrong elements"
    return [*lines, f"  {row['seconds']:9.3f}  from MPI_Init to the end, {wrong}"]


def _rows(session: Session, _item: Item) -> Iterator[Row]:
    yield measure_start(session)


BENCHMARKS = (
    Benchmark(
        "init",
        items=one_item(NBYTES),
        measure=_rows,
        lines=lambda rows: as_lines(rows[-1]),
        prepare=lambda: become_fresh(sys.argv[1:]),
    ),
)
