"""What `closeranks tune` shows: tables for a terminal, flat rows for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeranks.collectives.builders.patterns.segments import segments, slots_of
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import hierarchy
from closeranks.jobs.bench.measuring.sizes import show_bytes
from closeranks.jobs.bench.measuring.table import short
from closeranks.jobs.tune.fit import Point, misfit
from closeranks.jobs.tune.winners import Found

if TYPE_CHECKING:
    from rich.table import Table

    from closeranks.collectives.selection.tuning_table import Crossing
    from closeranks.comms.topology.link import Link
    from closeranks.comms.topology.topology import Topology

Row = dict[str, Any]
#: Vectors whose segments are shown, bytes.
VECTORS = tuple(1 << power for power in range(18, 27, 2))


def half_bytes(link: Link) -> int:
    """Give the bytes that take as long as a message of a segment costs beside them.

    Parameters
    ----------
    link : Link
        Measured.

    Returns
    -------
    int
        Hockney's half-performance length.
    """
    return round((link.segment_s or 0.0) * (link.bytes_per_s or 0.0))


def stage_rows(points: Sequence[Point], levels: Mapping[str, Crossing]) -> list[Row]:
    """Give a row for each measurement.

    Parameters
    ----------
    points : sequence of Point
        Of `survey`.
    levels : mapping of str to Crossing
        What they gave.

    Returns
    -------
    list of dict
        In their order.
    """
    return [
        {
            "kind": "stage",
            "level": point.stage.level,
            "stage": point.stage.kind,
            "size_bytes": point.nbytes,
            "message_bytes": point.stage.message_bytes(point.nbytes),
            "time_us": point.seconds * 1e6,
            "fitted_us": point.expected_s(levels[point.stage.level].link) * 1e6,
        }
        for point in points
    ]


def level_rows(points: Sequence[Point], levels: Mapping[str, Crossing]) -> list[Row]:
    """Give a row for each level.

    Parameters
    ----------
    points : sequence of Point
        Of `survey`.
    levels : mapping of str to Crossing
        What they gave.

    Returns
    -------
    list of dict
        Innermost first.
    """
    return [
        {
            "kind": "level",
            "level": name,
            "together": level.together,
            "latency_us": (level.link.latency_s or 0.0) * 1e6,
            "segment_us": (level.link.segment_s or 0.0) * 1e6,
            "GBps": (level.link.bytes_per_s or 0.0) / 1e9,
            "half_bytes": half_bytes(level.link),
            "misfit": misfit([p for p in points if p.stage.level == name], level.link),
        }
        for name, level in levels.items()
    ]


def segment_rows(guessed: Topology, tuned: Topology) -> list[Row]:
    """Give a row for some vectors of a hierarchical all-reduce.

    Parameters
    ----------
    guessed, tuned : Topology
        With the links of before and now.

    Returns
    -------
    list of dict
        By size; none without a hierarchy.
    """
    tree = hierarchy(tuned)
    if tree.depth < 2:
        return []
    slots = 2 * slots_of(tree)

    def number(topology: Topology, nbytes: int) -> int:
        return segments(Problem("allreduce", topology, count=nbytes // 4), slots)

    return [
        {
            "kind": "segments",
            "size_bytes": nbytes,
            "segments": number(tuned, nbytes),
            "guessed": number(guessed, nbytes),
        }
        for nbytes in VECTORS
    ]


def winner_rows(found: Found) -> list[Row]:
    """Give a row for each size that was tried.

    Parameters
    ----------
    found : mapping
        Of `winners.settle`.

    Returns
    -------
    list of dict
        By operation and size.
    """
    return [
        {"kind": "winner", "operation": name, "size_bytes": nbytes, "algorithm": winner}
        for name, known in found.items()
        for nbytes, winner in known
    ]


def show(rows: Sequence[Row]) -> None:
    """Write the rows of each kind as a table.

    Parameters
    ----------
    rows : sequence of dict
        Of the functions above; stages are left out, there are many.
    """
    from rich.console import Console

    console = Console()
    for kind, columns in _COLUMNS.items():
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            console.print(_table(chosen, columns))


def _table(rows: Sequence[Row], columns: Mapping[str, str]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns.values(), box=None, header_style="bold")
    for row in rows:
        table.add_row(*(escape(_cell(name, row[name])) for name in columns))
    return table


def _cell(name: str, value: Any) -> str:
    if name in ("size_bytes", "half_bytes"):
        return show_bytes(value) if name == "size_bytes" else f"{value / 1024:.0f}K"
    if name == "misfit":
        return f"{value:.0%}"
    return short(value) if isinstance(value, float) else str(value)


#: What a terminal shows of each kind, and under which title.
_COLUMNS: dict[str, dict[str, str]] = {
    "level": {
        "level": "level",
        "together": "ranks",
        "latency_us": "latency us",
        "segment_us": "start us",
        "GBps": "GB/s",
        "half_bytes": "half at",
        "misfit": "misfit",
    },
    "segments": {
        "size_bytes": "all-reduce of",
        "segments": "segments",
        "guessed": "guessed",
    },
    "winner": {"operation": "operation", "size_bytes": "bytes", "algorithm": "fastest"},
}
