"""``closeranks checkpoint``: looks after the checkpoints that jobs have left.

If a user or the system asks a verb to end, `orderly` lets it undo what it has
begun.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from closeranks.errors import UsageError
from closeranks.jobs.launch import target

if TYPE_CHECKING:
    from closeranks.checkpoint.restore.generation_choice import Availability
    from closeranks.jobs.checkpoint_tools.name_choice import Sight


#: What ends a program at once unless it says otherwise; SIGINT raises in Python anyway.
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
#: Seconds in which the same is told twice, by a launcher and to its group of processes.
_ECHO_S: Final = 5.0


@contextmanager
def orderly() -> Iterator[None]:
    """Leave by an exception where the system would end the program.

    Local.  All that was begun is undone then, as after an error; the exit
    status is 128 and the number of the signal.  Signals that somebody handles
    or ignores stay as they are, and so do all on another thread than the main
    one.

    Raises
    ------
    SystemExit
        When the program is told to end.
    """
    told_s = float("-inf")

    def end(number: int, _: object) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _ECHO_S:  # one more would cut the undoing off
            told_s = time.monotonic()
            raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _ENDS if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(path_type=Path)
Row = dict[str, Any]

_DIRECTORIES = click.option(
    "--directory", "directories", type=_FOLDER, multiple=True, metavar="D",
    help="Look here, not in this node's memory; several are taken for a node each.",
)  # fmt: skip
_PERSIST = click.option(
    "--persist", type=_FOLDER, metavar="D", help="Look at what is on disk there, too."
)
_JSON = click.option("--json", "json_path", type=_FILE, help="Write the list to this file.")


@click.group()
def checkpoint() -> None:
    """Look after the checkpoints that jobs keep in node memory.

    Nothing here needs a running job.  What one node holds is seldom all of a
    checkpoint: collect the slots of all nodes into a folder each, and give
    them with --directory.
    """


@checkpoint.command()
@click.argument("name", required=False)
@_DIRECTORIES
@_PERSIST
@_JSON
@click.option("--draw", "draw_path", type=_FILE, help="Draw who holds what: .svg or .png.")
def ls(
    name: str | None,
    directories: Sequence[Path],
    persist: Path | None,
    json_path: Path | None,
    draw_path: Path | None,
) -> None:
    """List what there is; with a NAME also who holds what of it."""
    from closeranks.jobs.checkpoint_tools import name_choice, tables

    target.check("checkpoint", json_path, draw_path)
    sight = name_choice.look("ls", name, directories, persist)
    rows = _rows(sight)
    if rows:
        tables.show(rows)
    else:
        click.echo(f"no checkpoints in {sight.where}")
    for key in sight.names if name is not None else ():
        click.echo(f"\n{_availability(sight, key)}")
    _write(json_path, rows)
    if draw_path is not None:
        _availability(sight, name_choice.only(sight.names, "ls --draw")).draw(draw_path)


@checkpoint.command()
@click.argument("name", required=False)
@_DIRECTORIES
@_PERSIST
@click.option("--repair", "repairs", is_flag=True, help="Make what is lost or damaged anew.")
@click.option("--into", type=_FOLDER, metavar="D", help="Put lost slots there; made if need be.")
@_JSON
def verify(
    name: str | None,
    directories: Sequence[Path],
    persist: Path | None,
    repairs: bool,
    into: Path | None,
    json_path: Path | None,
) -> None:
    """Look at all check sums, of all that there is or of NAME.

    Says of each save whether it is whole, repairable or lost, as far as its
    slots are seen here; the exit status is 1 unless all are whole in the end.
    """
    from closeranks.jobs.checkpoint_tools import name_choice, tables
    from closeranks.jobs.checkpoint_tools import verify as inspection

    target.check("checkpoint", json_path)
    if into is not None and not repairs:
        raise UsageError("checkpoint verify", "--into without --repair", "add --repair")
    sight = name_choice.look("verify", name, directories, persist)
    place = _made(into) if into is not None else None
    with orderly():
        rows = inspection.inspect(sight, place, repairs=repairs)
    if rows:
        tables.show_verdicts(rows)
    else:
        click.echo(f"no checkpoints in {sight.where}")
    _write(json_path, rows)
    if not all(row["fine"] for row in rows):
        raise SystemExit(1)


@checkpoint.command()
@click.argument("name")
@click.argument("output", type=_FILE)
@click.option("--step", type=int, help="This step; else the newest that is whole.")
@_DIRECTORIES
@click.option("--persist", type=_FOLDER, metavar="D", help="Take it from disk, not from memory.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is there.")
def convert(
    name: str,
    output: Path,
    step: int | None,
    directories: Sequence[Path],
    persist: Path | None,
    force: bool,
) -> None:
    """Write a step of NAME into OUTPUT, one HDF5 file of whole arrays.

    What ranks had together, or alike, is below /state, once; what rank 3 had
    for itself below /ranks/000003.
    """
    from closeranks.jobs.checkpoint_tools import clean as conversion
    from closeranks.jobs.checkpoint_tools import name_choice

    target.check("checkpoint", output)
    if output.exists() and not force:
        raise UsageError("checkpoint convert", f"{output} is there", "add --force to replace it")
    sight = name_choice.look("convert", name, directories, persist)
    if sight.disk is not None:
        found = [volume for _, volume in sight.volumes]
        key = name_choice.only(list(dict.fromkeys(one for one, _ in sight.volumes)), "convert")
        with orderly():
            done = conversion.from_disk(key, found, sight.disk / key, step, output)
    else:
        key = name_choice.only(sight.names, "convert")
        with orderly():
            done = conversion.from_memory(sight.found, step, output)
    click.echo(f"{output}: step {done} of {key}")


@checkpoint.command()
@click.option("--name", metavar="N", help="These, with or without the job.")
@click.option("--older-than", "age", metavar="AGE", help="Those last written so long ago: 2d, 12h.")
@click.option("--remove", "removes", is_flag=True, help="Remove them; else they are listed.")
@_DIRECTORIES
@_JSON
def clean(
    name: str | None,
    age: str | None,
    removes: bool,
    directories: Sequence[Path],
    json_path: Path | None,
) -> None:
    """List what could be removed from memory, or remove it by name or age.

    Kept is whatever a process has open, or a job that SLURM knows as queued or
    running.
    """
    from closeranks.jobs.checkpoint_tools import clean as cleaning
    from closeranks.jobs.checkpoint_tools import name_choice, tables

    target.check("checkpoint", json_path)
    if removes and name is None and age is None:
        raise UsageError("checkpoint clean", "--remove of everything", "add --name or --older-than")
    older_s = cleaning.parse_age(age) if age is not None else 0.0
    sight = name_choice.look("clean", name, directories)
    rows = cleaning.clean(sight, older_s, removes=removes)
    if rows:
        tables.show_fates(rows)
    else:
        click.echo(f"no checkpoints in {sight.where}" + (f" older than {age}" if age else ""))
    _write(json_path, rows)


def _rows(sight: Sight) -> list[Row]:
    """Describe what was found."""
    from closeranks.checkpoint.memory import slot_locks
    from closeranks.jobs.checkpoint_tools import tables

    now = time.time()
    owners = {name: slot_locks.owners(sight.places, name) for name in sight.names}
    rows = [one.row(now, owner=owners[one.name]) for one in sight.found]
    for name, volume in sight.volumes:
        assert sight.disk is not None
        rows.append(tables.row(name, volume, sight.disk / name, now))
    return rows


def _availability(sight: Sight, name: str) -> Availability:
    """Picture which rank or node holds which parts of a name."""
    from closeranks.checkpoint.restore.generation_choice import Availability

    saves = tuple(one.save for one in sight.found if one.name == name and one.save is not None)
    last = [place.name for place in sight.places]
    nodes = last if len(set(last)) == len(last) else [str(place) for place in sight.places]
    return Availability(name, saves, ("here",) if len(nodes) == 1 else tuple(nodes))


def _made(folder: Path) -> Path:
    """Make a folder for slots if need be."""
    from closeranks.checkpoint.restore import slot_inventory

    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
    except OSError as error:
        problem = f"--into {folder}: {error.strerror}"
        raise UsageError("checkpoint verify", problem, "name another folder") from error
    return slot_inventory.places([folder])[0]


def _write(path: Path | None, rows: list[Row]) -> None:
    """Write rows as JSON, if that was asked for."""
    if path is not None:
        target.write("checkpoint", path, json.dumps(rows, indent=1) + "\n")
