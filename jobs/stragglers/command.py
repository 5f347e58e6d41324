"""The verb ``closeranks stragglers``: pure, it starts no ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from closeranks.errors import UsageError
from closeranks.jobs.launch import target

if TYPE_CHECKING:
    from closeranks.jobs.stragglers.forecast import Forecast

_FILE = click.Path(dir_okay=False, path_type=Path)
_THERE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("trace", type=_THERE)
@click.option("--json", "json_path", type=_FILE, help="Write rows here.")
@click.option("--draw", "draw_path", type=_FILE, help="Draw trace and forecast: .svg or .png.")
def stragglers(trace: Path, json_path: Path | None, draw_path: Path | None) -> None:
    """Show which ranks are slow in a TRACE, and which scheme would pay.

    It starts no ranks.  TRACE is a file that Recorder has written during a run
    without a code.  The forecast is for rounds like those of the trace.
    """
    from closeranks.collectives.coded.stragglers.trace import Trace
    from closeranks.comms.topology.drawing import check_suffix
    from closeranks.jobs.stragglers.forecast import forecast

    target.check("stragglers", json_path, draw_path)
    if draw_path is not None:
        check_suffix(draw_path)
    try:
        found = forecast(Trace(trace))
    except UsageError as wrong:  # the words are right, the data are not
        raise click.ClickException(str(wrong)) from wrong
    with target.printing("stragglers"):
        _show(found)
    if json_path is not None:
        target.write("stragglers", json_path, json.dumps(found.rows, indent=1) + "\n")
    if draw_path is not None:
        from closeranks.jobs.stragglers.slowness_picture import draw_forecast

        with target.writing("stragglers", draw_path):
            draw_forecast(found, draw_path)


def _show(found: Forecast) -> None:
    """Print what was found."""
    from closeranks.jobs.plan.placement_rows import seconds

    trace, ranks = found.trace, found.ranks
    count = len(set(trace.hosts))
    hosts = f" on {count} {'host' if count == 1 else 'hosts'}" if trace.hosts else ""
    click.echo(
        f"{trace.rounds} rounds of {trace.n} ranks{hosts}: a rank computes"
        f" {seconds(trace.usual_s)}, and {seconds(trace.overhead_s)} of a round are messages"
    )
    said = [f"rank {rank}{_host(found, rank)} {ranks.usual[rank]:.2f}x" for rank in ranks.chronic]
    click.echo(f"slow for good: {', '.join(said) or 'none'}")
    shares = ranks.late.mean(axis=0)
    said = [f"rank {rank}{_host(found, rank)} {shares[rank]:.0%}" for rank in ranks.bursty[:8]]
    more = f" and {len(ranks.bursty) - 8} more" if len(ranks.bursty) > 8 else ""
    click.echo(f"slow at times: {', '.join(said) or 'none'}{more}")
    if found.bursts:
        counts = ", ".join(f"{length}: {count}" for length, count in found.bursts.items())
        click.echo(f"bursts by their rounds: {counts}; {found.bursty} holds for 95 %")
    click.echo()
    _table(found)
    click.echo(f"\n{found.advice}")


def _host(found: Forecast, rank: int) -> str:
    return f" ({found.trace.hosts[rank]})" if found.trace.hosts else ""


def _table(found: Forecast) -> None:
    """Print the forecast as a table."""
    from rich.console import Console
    from rich.table import Table

    from closeranks.jobs.plan.placement_rows import seconds

    table = Table(box=None, header_style="bold")
    for word in ("", "scheme", "a round", "95 % within", "faster", "data held", "sum"):
        table.add_column(word, justify="left" if word in ("", "scheme", "sum") else "right")
    for row in found.rows:
        table.add_row(
            "*" if row["chosen"] else "",
            row["scheme"],
            seconds(row["seconds"]),
            f"{seconds(row['low_s'])} to {seconds(row['high_s'])}",
            f"{row['speedup']:.2f}x",
            f"{row['memory']:.3g}x",
            "exact" if row["exact"] else "estimate",
        )
    console = Console()
    wide = Console(width=max(console.width, 110)) if not console.is_terminal else console
    wide.print(table)
