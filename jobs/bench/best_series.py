"""The launches behind ``--vs best``: one per library setting, then ours."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import click

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.registration import collectives_among
from closeranks.jobs.bench.command import bench
from closeranks.jobs.bench.measuring.best_settings import FOLDER, LAUNCH, PREFIX, launches
from closeranks.jobs.launch.mpi_library import of_python

_LOCAL = ("/tmp", "/dev/shm", "/run")  # on a cluster each node has its own


def series(
    program: list[str], *, library: str | None = None
) -> list[tuple[list[str], dict[str, str]]]:
    """Arrange the launches of a program; local, called by a launcher.

    A program is launched once, except ``closeranks bench .. --vs best``.  The
    library reads its settings when MPI starts, so each setting is a launch of
    its own, before the launch that the user asked for.  The launches hand
    their results on in a folder that is removed when this process ends.  If
    the launch of a setting fails, it is left out of the comparison.

    Parameters
    ----------
    program : list of str
        Its command line, e.g. ``["closeranks", "bench", "bcast"]``.
    library : str, optional
        ``"openmpi"``, ``"mpich"`` or ``"other"``; default: the library of
        the Python that runs this.

    Returns
    -------
    list of (list of str, dict of str to str)
        Command line and additional environment of each launch, in order.
    """
    names = _asks_best(program)
    if not names:
        return [(program, {})]
    kind = of_python(sys.executable).kind if library is None else library
    shared = str(_shared_folder())
    preliminary = [
        (program, {**environment, FOLDER: shared, LAUNCH: str(number)})
        for number, environment in enumerate(launches(kind, names))
    ]
    return [*preliminary, (program, {FOLDER: shared})]


def _asks_best(program: list[str]) -> list[str]:
    """Return the collectives that a bench command compares with best."""
    at = _arguments_at(program)
    if at is None:
        return []
    try:
        context = bench.make_context("bench", list(program[at:]), resilient_parsing=True)
        if "best" not in str(context.params.get("vs") or "").split(","):
            return []
        return collectives_among(context.params.get("names") or ())
    except (click.ClickException, UsageError):
        return []  # the program itself says what is wrong with it


def _arguments_at(program: list[str]) -> int | None:
    """Find where the arguments of ``bench`` begin, if this is that command."""
    for at, word in enumerate(program[:-1]):
        script = Path(word).name == "closeranks" and (at == 0 or program[at - 1] == "-m" or at == 1)
        if script and program[at + 1] == "bench":
            return at + 2
    return None


def _shared_folder() -> Path:
    """Make a folder that every node sees; it goes when this process ends."""
    candidates = [Path.cwd()]
    with suppress(RuntimeError):  # a user without a home
        candidates.append(Path.home() / ".cache" / "closeranks")
    if str(candidates[0]).startswith(_LOCAL):
        candidates.reverse()
    for parent in candidates:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError:
            continue
        atexit.register(_remove, made, os.getpid())
        return made
    raise UsageError(
        "bench --vs best",
        "neither the current folder nor ~/.cache/closeranks is writable",
        "start it in a writable folder that all nodes see",
    )


def _remove(path: Path, pid: int) -> None:
    """Remove the folder, unless this is a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
