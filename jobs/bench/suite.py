"""Runs a request from the first row to the last; collective.

Rows are written as they come, below a progress bar on standard error where a
terminal watches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import Benchmark, Item, benchmarks
from closeranks.jobs.bench.formats import Format
from closeranks.jobs.bench.measuring.collective_facts import known_algorithms
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.comparison import measure_setting
from closeranks.jobs.bench.measuring.number_text import show_bytes
from closeranks.jobs.bench.measuring.session import Row, Session, Write

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


def items(session: Session) -> list[Item]:
    """List what a session measures, in order.

    Parameters
    ----------
    session : Session
        Holds the request.

    Returns
    -------
    list of Item
        As the benchmarks of the request list them.

    Raises
    ------
    UsageError
        If an algorithm is unknown to all the operations, or MPI has nothing
        to compare with.
    """
    request, known = session.request, benchmarks()
    chosen = [item for name in request.names for item in known[name].items(request, name)]
    _check_algorithms(session, {item.algorithm for item in chosen})
    return chosen


def run(session: Session, form: Format, write: Write) -> list[Row]:
    """Measure everything, writing as it comes; collective.

    Parameters
    ----------
    session : Session
        Request and ranks.
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
            benchmark = benchmarks()[item.name]
            if title != (item.name, item.algorithm) and benchmark.titled:
                title = (item.name, item.algorithm)
                _write_all(write, [*form.title(*title), *benchmark.heading(session)])
            found: list[Row] = []
            for row in benchmark.measure(session, item):
                found.append(row)
                _write_all(write, _lines(benchmark, form, found))
            rows += found
            progress.advance()
    _write_all(write, form.end(rows))
    return rows


def _lines(benchmark: Benchmark, form: Format, rows: Sequence[Row]) -> list[str]:
    """Make the text of the last of an item's rows."""
    row = rows[-1]
    if benchmark.lines is not None:
        return benchmark.lines(rows)
    title = [] if benchmark.titled else form.title(row["name"], row["algorithm"])
    return [*title, *form.lines(row)]


def run_setting(session: Session, launch: int) -> list[SettingsResult]:
    """Measure the library and ours in turn, in one of the launches of ``--vs best``.

    Parameters
    ----------
    session : Session
        Request and ranks.
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


def _check_algorithms(session: Session, used: set[str]) -> None:
    """Refuse algorithms that none of the operations has."""
    request, known = session.request, benchmarks()
    collectives_first = sorted(request.names, key=lambda name: name not in COLLECTIVES)
    names = [one for name in collectives_first for one in known[name].operations(request, name)]
    unknown = [one for one in request.algorithms if one not in used]
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
