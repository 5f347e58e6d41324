"""Output in the form of nccl-tests, so that its readers' scripts work."""

from __future__ import annotations

from typing import Any

from closeranks.jobs.bench.measuring.exact_inputs import as_dtype
from closeranks.jobs.bench.measuring.session import Session

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


class Nccl:
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
