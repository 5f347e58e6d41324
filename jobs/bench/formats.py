"""Output in the form of nccl-tests, so that its readers' scripts work.

Output in the form of the OSU micro-benchmarks (OMB 7, option ``-f``).
"""

from __future__ import annotations

from typing import Any

from closeranks.jobs.bench.measuring.collective_facts import as_dtype
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.typed_options import POINT_TO_POINT

Row = dict[str, Any]

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
        What is measured where.
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
_TESTS = {
    "pingpong": "Latency Test",
    "bandwidth": "Bandwidth Test",
    "bibandwidth": "Bi-Directional Bandwidth Test",
    "pairs": "Multiple Bandwidth Test",
    "matrix": "Pairwise Bandwidth Test",
    "steps": "Step of a Plan Latency Test",
}


class OsuFormat:
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
