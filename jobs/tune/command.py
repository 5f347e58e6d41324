"""``closeranks tune``: measures a machine, and writes a tuning table.

What was measured is shown as tables on a terminal, and written as flat rows
for programs.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from closeranks.collectives.builders.patterns.segments import segments, slots_of
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import hierarchy
from closeranks.comms.settings import PREFIX
from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.number_text import parse_sizes, short, show_bytes
from closeranks.jobs.bench.measuring.session import BenchRequest, open_session
from closeranks.jobs.bench.measuring.timing import Effort
from closeranks.jobs.bench.suite import Progress
from closeranks.jobs.launch import program, target
from closeranks.jobs.tune import survey, winners
from closeranks.jobs.tune.survey import Point, misfit
from closeranks.jobs.tune.winners import Found

if TYPE_CHECKING:
    from mpi4py import MPI
    from rich.table import Table

    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.selection.tuning_table import Crossing, Tuned
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
        Results of the points.

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
        Results of the points.

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


_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--output", type=_FILE, default=Path("closeranks-tuning.json"), show_default=True,
              help="Write the table here.")  # fmt: skip
@click.option("--algorithms", is_flag=True, help="Find the fastest algorithms too: minutes.")
@click.option("--operations", default="all", show_default=True,
              help="For --algorithms: names of collectives, comma-separated.")  # fmt: skip
@click.option("--sizes", default="8:4M:4", show_default=True, help="For --algorithms: bytes.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), default=0.3, show_default=True,
              help="Seconds that a size of a stage may take, least counts apart.")  # fmt: skip
@click.option("--json", "json_path", type=_FILE, help="Write what was measured here.")
def tune(
    output: Path,
    algorithms: bool,
    operations: str,
    sizes: str,
    budget: float,
    json_path: Path | None,
) -> None:
    """Measure the stages of collectives, and write a table for init(tuning=...).

    Run it under closeranks run, closeranks lab, mpirun or srun, on ranks
    placed as the job's will be.  CLOSERANKS_TUNING=FILE makes jobs use it.
    """
    target.check("tune", output, json_path)
    names = _operations(operations)
    request = BenchRequest(
        names=names if algorithms else (),
        sizes=parse_sizes(sizes),
        effort=Effort(budget_s=budget),
        json=json_path,
    )
    execute(request, output)


def _operations(words: str) -> tuple[str, ...]:
    """Read ``--operations``."""
    names = tuple(COLLECTIVES) if words == "all" else tuple(dict.fromkeys(words.split(",")))
    unknown = [name for name in names if name not in COLLECTIVES]
    if unknown:
        problem = f"no collective {', '.join(unknown)}"
        raise UsageError("tune --operations", problem, f"all, or some of {', '.join(COLLECTIVES)}")
    return names


def execute(request: BenchRequest, output: Path) -> None:
    """Measure on all ranks and write; collective over MPI.COMM_WORLD.

    Parameters
    ----------
    request : BenchRequest
        Operations and sizes to try, how long, where rows go.
    output : Path
        Where the table goes.

    Raises
    ------
    UsageError
        On every rank, if there is only one, or the files cannot be written.
    """
    import closeranks

    program.begin()
    os.environ[f"{PREFIX}REMEMBER"] = "0"  # what was found before would be no trial
    with closeranks.init(tuning={}) as comm:  # an older table is of no use for a new one
        if comm.size == 1:
            raise UsageError("tune", "one rank has nothing to cross",
                             "start it with: closeranks run -n N -- closeranks tune")  # fmt: skip
        shown = comm.rank == 0
        trials = len(winners.asked(request.names, request.sizes))
        total = survey.sizes_told(comm.hierarchy) + trials
        with Progress(total, shown=shown) as progress:
            tuned, rows = measured(request, comm, progress)
        _write(comm, output, json.dumps(tuned.table(), indent=1))
        if request.json is not None:
            _write(comm, request.json, json.dumps(rows, indent=1))
        if shown:
            show(rows)
            click.echo(f"written to {output}; use it with CLOSERANKS_TUNING={output}")


def measured(
    request: BenchRequest, comm: Communicator, progress: Progress
) -> tuple[Tuned, list[Row]]:
    """Measure what a request asks for; collective.

    Parameters
    ----------
    request : BenchRequest
        The command line.
    comm : Communicator
        The ranks.
    progress : Progress
        Hears of every size.

    Returns
    -------
    tuned : Tuned
        The same on every rank.
    rows : list of dict
        Rows of the measurement.
    """
    from mpi4py import MPI

    from closeranks.collectives.engine import interpreter
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.selection.tuning_origin import here
    from closeranks.collectives.selection.tuning_table import Tuned

    def tell(name: str, kind: str, nbytes: int) -> None:
        progress.show(name, kind, nbytes)
        progress.advance()

    plain, topology = MPI.Intracomm(comm), comm.hierarchy
    speed = survey.memory_speed(plain)
    world = World(0, plain, topology)
    interpreter.prepare(world, together=True)
    points = survey.survey(world, request.effort, speed, tell)
    world.close()
    levels = survey.crossings(topology, points)
    native = survey.native_model(plain, request.effort, tell)
    tuned = Tuned(here(topology), levels, speed, native)
    links = {name: level.link for name, level in levels.items()}
    rows = level_rows(points, levels) + stage_rows(points, levels)
    rows += segment_rows(topology, topology.with_links(links))
    if request.names:
        found = _winners(request, plain, tuned, tell)
        tuned, rows = replace(tuned, winners=winners.rules(found)), rows + winner_rows(found)
    return _agreed(plain, tuned), rows


def _winners(
    request: BenchRequest, plain: MPI.Intracomm, tuned: Tuned, tell: survey.Tell
) -> winners.Found:
    """Make the trials on a communicator with the new prices."""
    import closeranks

    with closeranks.init(plain, tuning=tuned.table()) as comm:
        return winners.settle(open_session(request, comm), tell)


def _agreed(plain: MPI.Intracomm, tuned: Tuned) -> Tuned:
    """Take rank 0's table: names of processors may differ between nodes."""
    taken: Tuned = plain.bcast(tuned)
    return taken


def _write(comm: MPI.Intracomm, path: Path, text: str) -> None:
    """Let rank 0 put a file in its place as a whole; all ranks hear if it cannot."""
    problem: str | None = None
    if comm.rank == 0:
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with fresh.open("x") as file:
                file.write(text + "\n")
            fresh.replace(path)
        except OSError as error:
            problem = str(error)
            fresh.unlink(missing_ok=True)
    problem = comm.bcast(problem)
    if problem:
        raise UsageError("tune", f"cannot write {path}: {problem}", "choose another file")
