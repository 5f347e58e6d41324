"""Placements as rows of JSON, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.placement.ranked import Placement

Row = dict[str, Any]
#: Ranks of an order that a table shows.
_SHOWN: Final = 16
_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def rows(kind: str, placements: Sequence[Placement]) -> list[Row]:
    """Describe placements, best first, and the default last.

    Parameters
    ----------
    kind : str
        "axes" or "grid": what was asked for.
    placements : sequence of Placement
        At least one, best first.

    Returns
    -------
    list of dict
        A flat object each.
    """
    best = placements[0]
    found = [
        _row(kind, place, one.mesh, one.cost, one.default, exact=one.exact)
        for place, one in enumerate(placements, 1)
    ]
    plain = Mesh(best.mesh.axes, best.mesh.topology)
    return [*found, _row(kind, 0, plain, best.default, best.default, exact=False)]


def _row(
    kind: str, place: int, mesh: Mesh, cost: MeshCost, default: MeshCost, *, exact: bool
) -> Row:
    return {
        "kind": kind,
        "place": place,
        "axes": ",".join(f"{name}={size}" for name, size in mesh.axes.items()),
        "order": ",".join(map(str, mesh.ranks.reshape(-1).tolist())),
        "seconds": cost.seconds,
        "default_seconds": default.seconds,
        "speedup": default.seconds / cost.seconds if cost.seconds else 1.0,
        "exact": exact,
        **{f"bytes_{level}": nbytes for level, nbytes in cost.bytes_per_level.items()},
        **{f"group_bytes_{level}": nbytes for level, nbytes in cost.group_bytes_per_level.items()},
    }


def show(found: Sequence[Row], topology: Topology) -> None:
    """Print rows as a table; local.

    Parameters
    ----------
    found : sequence of dict
        From `rows`.
    topology : Topology
        Their machine.
    """
    from rich.console import Console
    from rich.table import Table

    levels = [name for name in topology.levels if topology.count(name) > 1]
    table = Table(box=None, header_style="bold")
    for word in ("place", "axes", "a step", "faster", *(f"leaves a {name}" for name in levels)):
        table.add_column(word, justify="left" if word == "axes" else "right")
    table.add_column("order", overflow="fold")
    for row in found:
        table.add_row(
            str(row["place"]) if row["place"] else "default",
            row["axes"],
            seconds(row["seconds"]),
            f"{row['speedup']:.3g}x" + (" (exact)" if row["exact"] else ""),
            *(nbytes(row[f"group_bytes_{name}"]) for name in levels),
            _order(row["order"]),
        )
    console = Console()
    wide = Console(width=max(console.width, 110)) if not console.is_terminal else console
    wide.print(table)


def _order(text: str) -> str:
    """Cut an order where a table has no room."""
    ranks = text.split(",")
    left = len(ranks) - _SHOWN
    return " ".join(ranks[:_SHOWN]) + (f" ... ({left} more)" if left > 0 else "")


def seconds(value: float) -> str:
    """Write a time with its unit.

    Parameters
    ----------
    value : float
        Seconds.

    Returns
    -------
    str
        Three digits.
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def nbytes(value: float) -> str:
    """Write bytes with their unit, powers of 1000.

    Parameters
    ----------
    value : float
        Bytes.

    Returns
    -------
    str
        Three digits.
    """
    for scale, unit in _UNITS:
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} B"
