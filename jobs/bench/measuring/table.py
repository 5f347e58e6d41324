"""The default output: a plain table with every column that was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]


def short(value: float) -> str:
    """Write a positive number with four significant digits, never as 1e5.

    Parameters
    ----------
    value : float
        Any number of at least 0.

    Returns
    -------
    str
        At most four digits after the point, none from 1000 on.
    """
    if value >= 1000:
        return f"{value:.0f}"
    decimals = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{decimals}f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}x"


_COLUMNS: tuple[tuple[str, str, int, Callable[[Any], str]], ...] = (
    ("size_bytes", "bytes", 10, str),
    ("source", "from", 5, str),
    ("target", "to", 5, str),
    ("iterations", "calls", 7, str),
    ("time_us_min", "min us", 9, short),
    ("time_us_p50", "p50 us", 9, short),
    ("time_us_mean", "mean us", 9, short),
    ("time_us_p99", "p99 us", 9, short),
    ("time_us_max", "max us", 9, short),
    ("algbw_GBps", "algbw", 8, short),
    ("busbw_GBps", "busbw", 8, short),
    ("wrong", "wrong", 6, str),
    ("wire_percent", "wire %", 7, lambda value: f"{value:.1f}"),
    ("native_us_p50", "native us", 10, short),
    ("speedup", "speedup", 8, _ratio),
    ("native_vs_native", "A/A", 6, _ratio),
    ("plain_us_p50", "plain us", 9, short),
    ("speedup_plain", "vs plain", 8, _ratio),
    ("best_us_p50", "best us", 9, short),
    ("speedup_best", "vs best", 8, _ratio),
    ("copy_us_p50", "copy us", 9, short),
    ("over_copy", "/copy", 7, _ratio),
    ("nic_tx_bytes_max", "NIC bytes", 10, lambda value: f"{value:.0f}"),
    ("nic_even_percent", "even %", 7, lambda value: f"{value:.1f}"),
    ("planned_bytes", "planned", 10, lambda value: f"{value:.0f}"),
    ("thread_ms_quiet", "quiet ms", 9, short),
    ("thread_ms_busy", "busy ms", 9, short),
    ("busy_over_quiet", "b/q", 8, _ratio),
    ("chosen", "chosen", 12, str),
    ("best_settings", " best setting", 0, str),
)
_THREAD = {"thread_ms_quiet", "thread_ms_busy", "busy_over_quiet"}
_OPTIONAL = _THREAD | {
    "source", "target", "wire_percent", "nic_tx_bytes_max", "nic_even_percent", "planned_bytes",
    "chosen", "copy_us_p50", "over_copy", "plain_us_p50", "speedup_plain",
}  # fmt: skip
_NATIVE = {"native_us_p50", "speedup", "native_vs_native"}
_BEST = {"best_us_p50", "speedup_best", "best_settings"}


class ResultTable:
    """Writes rows as a table; the first column is bytes, ``#`` a comment.

    Parameters
    ----------
    session : Session
        What is measured where.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._shown: tuple[str, ...] = ()

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
        shown = tuple(name for name in (column[0] for column in _COLUMNS) if self._shows(name, row))
        chosen = [column for column in _COLUMNS if column[0] in shown]
        text = []
        if shown != self._shown and not set(shown) <= set(self._shown):
            self._shown = shown
            text.append(_line([(title, width) for _, title, width, _ in chosen], "#"))
        columns = [column for column in _COLUMNS if column[0] in self._shown]
        cells = [(_cell(row.get(name), write), width) for name, _, width, write in columns]
        return [*text, _line(cells, " ")]

    def end(self, rows: list[Row]) -> list[str]:
        """Return the lines after everything."""
        wrong = [row["wrong"] for row in rows if row.get("wrong") is not None]
        verdict = "not checked" if not wrong else f"{sum(wrong)} wrong elements"
        return ["#", f"# {len(rows)} rows, {verdict}"]

    def _shows(self, name: str, row: Row) -> bool:
        """Say whether a column is worth its place."""
        request = self._session.request
        if name in _NATIVE:
            return request.native and name in row
        if name in _BEST:
            return request.best and name in row
        return name in row if name in _OPTIONAL else True


def _cell(value: Any, write: Callable[[Any], str]) -> str:
    """Write one value; "-" if there is none."""
    return "-" if value is None else write(value)


def _line(cells: list[tuple[str, int]], first: str) -> str:
    """Lay cells out to the right of their columns."""
    words = [text.rjust(width) for text, width in cells]
    line = first + " ".join(words)
    return line.rstrip()
