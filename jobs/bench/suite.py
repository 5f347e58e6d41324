"""A progress bar on standard error, where a terminal watches.

Runs a request from the first row to the last; collective.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches import checkpoint, init_time, overlap, snapshot
from closeranks.jobs.bench.benches.collective_row import measure
from closeranks.jobs.bench.benches.pack import HEAD, as_line, measure_packs
from closeranks.jobs.bench.benches.plan_steps import NBYTES, measure_steps
from closeranks.jobs.bench.benches.point_to_point import as_table, measure_matrix, measure_points
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.comparison import check_comparable
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.typed_options import LOCAL, show_bytes
from closeranks.jobs.bench.one_setting import measure_setting

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from closeranks.jobs.bench.measuring.best_settings import SettingsResult


class Progress:
    """Counts measured items; silent unless standard error is a terminal.

    Parameters
    ----------
    total : int
        Number of items.
    shown : bool
        False on all ranks but one.
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar = _bar() if shown and sys.stderr.isatty() else None
        self._task = None if self._bar is None else self._bar.add_task("bench", total=total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, name: str, algorithm: str, nbytes: int) -> None:
        """Name what is being measured."""
        if self._bar is not None and self._task is not None:
            text = f"{name} {algorithm} {show_bytes(nbytes)}"
            self._bar.update(self._task, description=text)

    def advance(self) -> None:
        """Count one item as done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


def _bar() -> Bar:
    """Make the bar; rows pass above it only where both are one terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )


Row = dict[str, Any]
Write = Callable[[str], None]


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


@dataclass(frozen=True)
class Item:
    """One thing to measure.

    Parameters
    ----------
    name : str
        Benchmark.
    algorithm : str
        What is passed as ``algorithm=``.
    nbytes : int
        Size asked for.
    operation : str, optional
        The collective that ``overlap`` starts.
    """

    name: str
    algorithm: str
    nbytes: int
    operation: str = ""


def items(session: Session) -> list[Item]:
    """List what a session measures, in order.

    Parameters
    ----------
    session : Session
        Holds the request.

    Returns
    -------
    list of Item
        Algorithms only where the operation has them; a barrier has one size.

    Raises
    ------
    UsageError
        If an algorithm is unknown to all the operations, or MPI has nothing
        to compare with.
    """
    request = session.request
    chosen: list[Item] = []
    for name in request.names:
        if name in LOCAL:
            chosen.append(Item(name, "auto", 0))
            continue
        if name == "init":
            chosen.append(Item(name, "auto", init_time.NBYTES))
            continue
        if name == "overlap":
            chosen += _overlaps(session)
            continue
        if name in ("checkpoint", "snapshot"):
            chosen += [Item(name, "auto", nbytes) for nbytes in request.checkpoint_sizes]
            continue
        if name not in COLLECTIVES:
            sizes = request.matrix_sizes if name == "matrix" else request.sizes
            sizes = (NBYTES,) if name == "steps" else sizes
            chosen += [Item(name, "native", nbytes) for nbytes in sizes]
            continue
        if request.native or request.best:
            check_comparable(COLLECTIVES[name], request.dtype, request.op)
        sizes = (0,) if name == "barrier" else request.sizes
        known = known_algorithms(name)
        for algorithm in (one for one in request.algorithms if one in known):
            chosen += [Item(name, algorithm, nbytes) for nbytes in sizes]
    _check_algorithms(session, {item.algorithm for item in chosen})
    return chosen


def _overlaps(session: Session) -> list[Item]:
    """List what ``overlap`` measures, in order."""
    request = session.request
    return [
        Item("overlap", algorithm, nbytes, operation)
        for operation in request.overlapped
        for algorithm in request.algorithms
        if algorithm in known_algorithms(operation)
        for nbytes in request.overlap_sizes
    ]


def known_algorithms(name: str) -> tuple[str, ...]:
    """List what ``algorithm=`` takes for an operation.

    Parameters
    ----------
    name : str
        A collective.

    Returns
    -------
    tuple of str
        "auto" and "native" among them.
    """
    from closeranks.collectives.builders.catalogue import algorithms

    return ("auto", "native", *algorithms(name))


def run(session: Session, form: Format, write: Write) -> list[Row]:
    """Measure everything, writing as it comes; collective.

    Parameters
    ----------
    session : Session
        What, and where.
    form : Format
        Makes text of rows.
    write : callable
        Takes one line; called on every rank, so let it be silent on others.

    Returns
    -------
    list of dict
        All rows, the same on every rank.
    """
    todo = items(session)
    rows: list[Row] = []
    _write_all(write, [*form.begin(), *_settings_lines(session)])
    with Progress(len(todo), shown=session.plain.Get_rank() == 0) as progress:
        title: tuple[str, str] | None = None
        for item in todo:
            progress.show(item.name, item.algorithm, item.nbytes)
            if title != (item.name, item.algorithm) and item.name != "steps":
                title = (item.name, item.algorithm)
                _write_all(write, form.title(*title))
            for row, lines in _measured(session, item, form):
                rows.append(row)
                _write_all(write, lines)
            progress.advance()
    _write_all(write, form.end(rows))
    return rows


def run_setting(session: Session, launch: int) -> list[SettingsResult]:
    """Measure the library and ours in turn, in one of the launches of ``--vs best``.

    Parameters
    ----------
    session : Session
        What, and where.
    launch : int
        Number of the launch.

    Returns
    -------
    list of SettingsResult
        The same on every rank.
    """
    results: list[SettingsResult] = []
    for item in items(session):
        if item.name in COLLECTIVES:
            collective = COLLECTIVES[item.name]
            results += measure_setting(session, collective, item.algorithm, item.nbytes, launch)
    return results


def _measured(session: Session, item: Item, form: Format) -> Iterator[tuple[Row, list[str]]]:
    """Measure one item: rows, each with its text."""
    if item.name in COLLECTIVES:
        row = measure(session, COLLECTIVES[item.name], item.algorithm, item.nbytes)
        yield row, form.lines(row)
    elif item.name == "pack":
        for i, row in enumerate(measure_packs(session)):
            yield row, [as_line(row)] if i else [HEAD, as_line(row)]
    elif item.name == "overlap":
        found = overlap.measure_overlap(session, item.operation, item.algorithm, item.nbytes)
        for i, row in enumerate(found):
            yield row, [overlap.as_line(row)] if i else [overlap.head(), overlap.as_line(row)]
    elif item.name == "checkpoint":
        for i, parity in enumerate(session.request.parities):
            row = checkpoint.measure_checkpoint(session, item.nbytes, parity)
            yield (
                row,
                [checkpoint.as_line(row)] if i else [checkpoint.head(), checkpoint.as_line(row)],
            )
    elif item.name == "snapshot":
        for i, row in enumerate(snapshot.measure_snapshot(session, item.nbytes)):
            yield row, [snapshot.as_line(row)] if i else [snapshot.head(), snapshot.as_line(row)]
    elif item.name == "init":
        row = init_time.measure_start(session)
        yield row, init_time.as_lines(row)
    elif item.name == "matrix":
        rows = measure_matrix(session, item.nbytes)
        title = f"#  {show_bytes(item.nbytes)} messages"
        for i, row in enumerate(rows):
            yield row, [] if i else [title, *as_table(rows)]
    elif item.name == "steps":
        for row in measure_steps(session):
            yield row, [*form.title(row["name"], row["algorithm"]), *form.lines(row)]
    else:
        row = measure_points(session, item.name, item.nbytes)
        yield row, form.lines(row)


def _check_algorithms(session: Session, used: set[str]) -> None:
    """Refuse algorithms that none of the operations has."""
    names = [name for name in session.request.names if name in COLLECTIVES]
    if "overlap" in session.request.names:
        names += session.request.overlapped
    unknown = [one for one in session.request.algorithms if one not in used]
    if names and unknown:
        choices = "; ".join(f"{name}: {', '.join(known_algorithms(name))}" for name in names)
        raise UsageError(
            "bench --algorithms", f"unknown: {', '.join(unknown)}", f"choose from {choices}"
        )


def _settings_lines(session: Session) -> list[str]:
    """Say which settings of the library ``best`` is the best of."""
    if not session.request.best:
        return []
    lines = ["# best of these settings of the library, each in a launch of its own:"]
    for name, labels in session.best.settings.items():
        lines += [f"#   {name}: {label}" for label in labels]
    return lines


def _write_all(write: Write, lines: list[str]) -> None:
    """Write lines one by one."""
    for line in lines:
        write(line)
