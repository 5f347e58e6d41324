"""Output in the form of the OSU micro-benchmarks (OMB 7, option ``-f``)."""

from __future__ import annotations

from typing import Any

from closeranks.jobs.bench.measuring.benchmark_names import POINT_TO_POINT
from closeranks.jobs.bench.measuring.session import Session

Row = dict[str, Any]

_WIDTH = 18
_TESTS = {
    "pingpong": "Latency Test",
    "bandwidth": "Bandwidth Test",
    "bibandwidth": "Bi-Directional Bandwidth Test",
    "pairs": "Multiple Bandwidth Test",
    "matrix": "Pairwise Bandwidth Test",
    "steps": "Step of a Plan Latency Test",
}


class Osu:
    """Writes rows as OMB does: size, average, minimum, maximum, iterations.

    The average is OMB's, the mean over the ranks of their own means; minimum
    and maximum are those of single calls, each the maximum over the ranks.

    Parameters
    ----------
    session : Session
        What is measured where.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._name = ""

    def begin(self) -> list[str]:
        """Return the lines before everything."""
        return [f"# {line}" for line in self._session.warn()]

    def title(self, name: str, algorithm: str) -> list[str]:
        """Return the header of one test."""
        import closeranks

        self._name = name
        test = _TESTS.get(name, f"{name.capitalize()} Latency Test")
        columns = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)"]
        if name in POINT_TO_POINT:
            columns = ["Latency (us)"] if name == "pingpong" else ["Bandwidth (MB/s)"]
        head = "# Size".ljust(10) + "".join(column.rjust(_WIDTH) for column in columns)
        if name not in POINT_TO_POINT:
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
        if self._name in POINT_TO_POINT:
            mean = row["time_us_mean"]
            values = [mean] if self._name == "pingpong" else [row["algbw_GBps"] * 1e3]
        line = str(row["size_bytes"]).ljust(10) + "".join(f"{v:{_WIDTH}.2f}" for v in values)
        if self._name not in POINT_TO_POINT:
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
