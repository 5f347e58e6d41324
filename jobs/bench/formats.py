"""Rows as text: the default table, and the forms of nccl-tests and of OMB.

Readers' scripts for nccl-tests and for the OSU micro-benchmarks (OMB 7, option
``-f``) work on the latter two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from closeranks.jobs.bench.benches.registration import TableColumn, benchmarks
from closeranks.jobs.bench.measuring.collective_facts import as_dtype
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]


class Format(Protocol):
    """How rows become text."""

    def begin(self) -> list[str]:
        """Return the lines before everything."""

    def title(self, name: str, algorithm: str) -> list[str]:
        """Return the lines before a benchmark."""

    def lines(self, row: Row) -> list[str]:
        """Return the lines of a row."""

    def end(self, rows: list[Row]) -> list[str]:
        """Return the lines after everything."""


_COLUMNS = (
    TableColumn("size_bytes", "bytes", 10, str),
    TableColumn("iterations", "calls", 7, str),
    TableColumn("time_us_min", "min us", 9, short),
    TableColumn("time_us_p50", "p50 us", 9, short),
    TableColumn("time_us_mean", "mean us", 9, short),
    TableColumn("time_us_p99", "p99 us", 9, short),
    TableColumn("time_us_max", "max us", 9, short),
    TableColumn("algbw_GBps", "algbw", 8, short),
    TableColumn("busbw_GBps", "busbw", 8, short),
    TableColumn("wrong", "wrong", 6, str),
)


class ResultTable:
    """Writes rows as a table; the first column is bytes, ``#`` a comment.

    Parameters
    ----------
    session : Session
        Request and ranks.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._shown: tuple[TableColumn, ...] = ()

    def begin(self) -> list[str]:
        """Return the lines before everything."""
        return [
            *(f"# {line}" for line in self._session.describe()),
            "# time of a call: maximum over the ranks; a barrier between calls, outside the time;",
            "# below 20 us batches of 1000 calls, slowest rank; 1 GB/s = 1e9 bytes/s",
        ]

    def title(self, name: str, algorithm: str) -> list[str]:
        """Return the lines before a benchmark; column names come later."""
        self._shown = ()
        return ["#", f"# {name}, algorithm {algorithm}"]

    def lines(self, row: Row) -> list[str]:
        """Return a row, after the column names if they changed."""
        own = benchmarks()[row["name"]].columns
        columns = (*_COLUMNS, *(column for column in own if column.key in row))
        text = []
        if not set(columns) <= set(self._shown):
            self._shown = columns
            text.append(_line([(column.title, column.width) for column in columns], "#"))
        cells = [(_cell(row.get(one.key), one.write), one.width) for one in self._shown]
        return [*text, _line(cells, " ")]

    def end(self, rows: list[Row]) -> list[str]:
        """Return the lines after everything."""
        wrong = [row["wrong"] for row in rows if row.get("wrong") is not None]
        verdict = "not checked" if not wrong else f"{sum(wrong)} wrong elements"
        return ["#", f"# {len(rows)} rows, {verdict}"]


def _cell(value: Any, write: Callable[[Any], str]) -> str:
    """Write one value; "-" if there is none."""
    return "-" if value is None else write(value)


def _line(cells: list[tuple[str, int]], first: str) -> str:
    """Lay cells out to the right of their columns."""
    words = [text.rjust(width) for text, width in cells]
    line = first + " ".join(words)
    return line.rstrip()


_HALF = "{:>9}{:>8}{:>8}{:>7}"
HEADER = (
    "#" + "out-of-place".rjust(74) + "in-place".rjust(31) + " " * 10,
    "#       size         count      type   redop    root"
    + _HALF.format("time", "algbw", "busbw", "#wrong") * 2,
    "#        (B)    (elements)" + " " * 26 + _HALF.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
)
_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "bfloat16": "bfloat16",
}
_ROOTED = {"bcast", "reduce", "gather", "gatherv", "scatter", "scatterv"}


def clipped(value: float, width: int) -> str:
    """Write a number into a width as nccl-tests does.

    Parameters
    ----------
    value : float
        Microseconds or GB/s.
    width : int
        Characters.

    Returns
    -------
    str
        Two decimals below 100, one below 10000, none above.
    """
    decimals = 2 if value < 100 else 1 if value < 10000 else 0
    return f"{value:{width}.{decimals}f}"


class NcclFormat:
    """Writes rows as nccl-tests does; nothing is measured in place.

    Parameters
    ----------
    session : Session
        Request and ranks.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def begin(self) -> list[str]:
        """Return the lines before everything."""
        return [f"# {line}" for line in self._session.describe()]

    def title(self, name: str, algorithm: str) -> list[str]:
        """Return the header of one test."""
        return ["#", f"# Collective test starting: {name}, algorithm {algorithm}", "#", *HEADER]

    def lines(self, row: Row) -> list[str]:
        """Return one row; the in-place half says N/A."""
        size, count = row["size_bytes"], row["size_bytes"] // as_dtype(row["dtype"]).itemsize
        root = 0 if row["name"] in _ROOTED else -1
        kind = _TYPES.get(row["dtype"], row["dtype"])
        wrong = "N/A" if row["wrong"] is None else str(row["wrong"])
        out = (
            f"  {clipped(row['time_us_mean'], 7)}  {row['algbw_GBps']:6.2f}"
            f"  {row['busbw_GBps']:6.2f}  {wrong:>5}"
        )
        inside = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
        return [f"{size:12d}  {count:12d}  {kind:>8}  {row['op']:>6}  {root:6d}{out}{inside}"]

    def end(self, rows: list[Row]) -> list[str]:
        """Return nccl-tests' two closing lines."""
        wrong = sum(row.get("wrong") or 0 for row in rows)
        busbw = [row["busbw_GBps"] for row in rows]
        mean = sum(busbw) / len(busbw) if busbw else 0.0
        verdict = "FAILED" if wrong else "OK"
        return [
            f"# Out of bounds values : {wrong} {verdict}",
            f"# Avg bus bandwidth    : {mean:g} ",
            "#",
        ]


_WIDTH = 18


class OsuFormat:
    """Writes rows as OMB does: size, average, minimum, maximum, iterations.

    The average is OMB's, the mean over the ranks of their own means.  Minimum
    and maximum are of single calls, each the maximum over the ranks.

    Parameters
    ----------
    session : Session
        Request and ranks.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._unit = ""

    def begin(self) -> list[str]:
        """Return the lines before everything."""
        return [f"# {line}" for line in self._session.warn()]

    def title(self, name: str, algorithm: str) -> list[str]:
        """Return the header of one test."""
        import closeranks

        self._unit = benchmarks()[name].unit
        test = benchmarks()[name].test or f"{name.capitalize()} Latency Test"
        columns = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)"]
        if self._unit:
            columns = [self._unit]
        head = "# Size".ljust(10) + "".join(column.rjust(_WIDTH) for column in columns)
        if not self._unit:
            head += "Iterations".rjust(12)
        if self._validates():
            head += "Validation".rjust(_WIDTH)
        return [
            f"# OSU-style MPI {test}, closeranks {closeranks.__version__}, algorithm {algorithm}",
            f"# Datatype: {self._session.request.dtype}.",
            head,
        ]

    def lines(self, row: Row) -> list[str]:
        """Return one row."""
        values = [row["time_us_rank_mean"], row["time_us_min"], row["time_us_max"]]
        if self._unit:
            is_time = self._unit.endswith("(us)")
            values = [row["time_us_mean"] if is_time else row["algbw_GBps"] * 1e3]
        line = str(row["size_bytes"]).ljust(10) + "".join(f"{v:{_WIDTH}.2f}" for v in values)
        if not self._unit:
            line += str(row["iterations"]).rjust(12)
        if self._validates():
            line += ("Fail" if row["wrong"] else "Pass").rjust(_WIDTH)
        return [line]

    def end(self, rows: list[Row]) -> list[str]:
        """Return the lines after everything."""
        del rows
        return []

    def _validates(self) -> bool:
        """Say whether there is a validation column."""
        return self._session.request.check


FORMATS: dict[str, Callable[[Session], Format]] = {
    "table": ResultTable,
    "osu": OsuFormat,
    "nccl": NcclFormat,
}
