"""The registration of a benchmark, and all that have registered.

A benchmark is one module of this package, and one line in `MODULES`.  The
module says in `BENCHMARKS` what the command line, the suite and the tables
need to know::

    BENCHMARKS = (Benchmark("hello", items=one_item(0), measure=_measure),)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.session import write_rows

if TYPE_CHECKING:
    from closeranks.jobs.bench.measuring.session import BenchRequest, Session

Row = dict[str, Any]

#: Modules that register benchmarks, in the order of the help.
MODULES: Final = (
    "collective", "point_to_point", "plan_steps", "pack", "overlap", "init_time", "faults",
    "churn", "erasure", "checkpoint", "snapshot", "varied", "redistribute", "halo",
    "coded", "sparse",
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One thing to measure.

    Parameters
    ----------
    name : str
        Benchmark.
    algorithm : str
        Value of ``algorithm=``.
    nbytes : int
        Size asked for.
    operation : str, optional
        The collective that ``overlap`` starts, or the pattern of ``varied``.
    """

    name: str
    algorithm: str
    nbytes: int
    operation: str = ""


class TableColumn(NamedTuple):
    """A column of the default table.

    Attributes
    ----------
    key : str
        Of a row.
    title : str
        Above the column.
    width : int
        Characters, at least.
    write : callable
        Makes text of a value.
    """

    key: str
    title: str
    width: int
    write: Callable[[Any], str]


@dataclass(frozen=True)
class LoneRun:
    """How a benchmark runs that is named alone, without a session.

    Parameters
    ----------
    reason : str
        Why it is named alone, in a few words.
    understands : tuple of str
        Options of all benchmarks that mean something to it, by name in Python.
    run : callable
        Runs a request, gives the exit status.
    """

    reason: str
    understands: tuple[str, ...]
    run: Callable[[BenchRequest], int]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, its options, its measurement, its text.

    Parameters
    ----------
    name : str
        On the command line, and in rows.
    items : callable
        (request, name) -> what the suite measures, in order.
    measure : callable
        (session, item) -> rows, the same on every rank; collective.
    heading : callable, optional
        session -> lines below the title.
    lines : callable, optional
        Rows of an item so far -> lines that the last of them adds.  Default: rows
        are written in the format that was asked for.
    columns : tuple of TableColumn, optional
        Columns of the default table that only its rows have; those that a row
        lacks are not shown.
    test, unit : str, optional
        Its name in output of OMB's form, and the title of the one column of
        values there.  Default: three times, and the iterations.
    options : tuple of click.Option, optional
        Options that no other benchmark has.
    sizes : str, optional
        Default of ``--sizes``, if it has another than the others.
    in_all : bool, optional
        Whether ``all`` stands for it too.
    check : callable, optional
        Refuses a request that cannot end well, before MPI starts; local.
    prepare : callable, optional
        Called before MPI starts; local.
    operations : callable, optional
        (request, name) -> collectives that ``--algorithms`` is about.
    titled : bool, optional
        False if every row has a title, instead of every item.
    lone : LoneRun, optional
        How it runs instead, if it is named alone; then it has no items.
    """

    name: str
    items: Callable[[BenchRequest, str], list[Item]] = lambda _request, _name: []
    measure: Callable[[Session, Item], Iterable[Row]] = lambda _session, _item: ()
    heading: Callable[[Session], list[str]] = lambda _session: []
    lines: Callable[[Sequence[Row]], list[str]] | None = None
    columns: tuple[TableColumn, ...] = ()
    test: str = ""
    unit: str = ""
    options: tuple[click.Option, ...] = ()
    sizes: str = ""
    in_all: bool = False
    check: Callable[[BenchRequest], None] = lambda _request: None
    prepare: Callable[[], None] = lambda: None
    operations: Callable[[BenchRequest, str], Sequence[str]] = lambda _request, _name: ()
    titled: bool = True
    lone: LoneRun | None = None


def one_item(nbytes: int, algorithm: str = "auto") -> Callable[[BenchRequest, str], list[Item]]:
    """Make the `items` of a benchmark that measures one size.

    Parameters
    ----------
    nbytes : int
        The size.
    algorithm : str
        Of the item.

    Returns
    -------
    callable
        As `Benchmark` takes it.
    """
    return lambda _request, name: [Item(name, algorithm, nbytes)]


def an_item_a_size(algorithm: str = "auto") -> Callable[[BenchRequest, str], list[Item]]:
    """Make the `items` of a benchmark that measures the sizes of the request.

    Parameters
    ----------
    algorithm : str
        Of each item.

    Returns
    -------
    callable
        As `Benchmark` takes it.
    """
    return lambda request, name: [Item(name, algorithm, n) for n in request.sizes_of(name)]


def own_table(
    head: Callable[[], str], as_line: Callable[[Row], str]
) -> Callable[[Sequence[Row]], list[str]]:
    """Make the `lines` of a benchmark with a head above rows of a line each.

    Parameters
    ----------
    head : callable
        Gives the lines above the first row.
    as_line : callable
        Makes a line of a row.

    Returns
    -------
    callable
        As `Benchmark` takes it.
    """
    return lambda rows: [*([head()] if len(rows) == 1 else []), as_line(rows[-1])]


def run_alone(request: BenchRequest, rows: Iterable[Row], is_right: Callable[[Row], bool]) -> int:
    """Write rows that need no session, each as soon as it is there; local.

    Parameters
    ----------
    request : BenchRequest
        Names the file.
    rows : iterable of dict
        Each is measured when it is asked for.
    is_right : callable
        Says whether a row is as it must be.

    Returns
    -------
    int
        Exit status: 1 if a row is not right, else 0.
    """
    written = list[Row]()
    for row in rows:
        written.append(row)
        write_rows(request, written)  # the next one may end the process
    return int(not all(map(is_right, written)))


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Import the modules of all benchmarks.

    Returns
    -------
    dict of str to Benchmark
        By name, in the order of the help.
    """
    package = __name__.rpartition(".")[0]
    modules = (import_module(f"{package}.{name}") for name in MODULES)
    return {one.name: one for module in modules for one in module.BENCHMARKS}


def named(request: BenchRequest) -> Iterator[Benchmark]:
    """Give the benchmarks of a request.

    Parameters
    ----------
    request : BenchRequest
        Names them.

    Yields
    ------
    Benchmark
        In the order of the help.
    """
    yield from (one for name, one in benchmarks().items() if name in request.names)


def expand(names: Iterable[str]) -> list[str]:
    """Replace ``all`` and drop repetitions.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Names of benchmarks, in the order they were first typed.

    Raises
    ------
    UsageError
        If there is none, or an unknown one.
    """
    known = benchmarks()
    every = [name for name, one in known.items() if one.in_all]
    chosen: dict[str, None] = {}
    for name in names:
        if name not in (*known, "all"):
            raise UsageError("bench", f"unknown benchmark {name!r}", f"choose from: {choices()}")
        chosen.update(dict.fromkeys(every if name == "all" else (name,)))
    if not chosen:
        raise UsageError("bench", "no benchmark named", f"choose from: {choices()}")
    return list(chosen)


def collectives_among(names: Iterable[str]) -> list[str]:
    """Return the collectives that the names stand for.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Names in `COLLECTIVES`.

    Raises
    ------
    UsageError
        As `expand`.
    """
    return [name for name in expand(names) if name in COLLECTIVES]


def choices() -> str:
    """List all that can be typed."""
    return " ".join((*benchmarks(), "all"))
