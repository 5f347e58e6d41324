"""Checking what there is, and repairing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from closeranks.checkpoint import locks, repair
from closeranks.checkpoint.header import WRITING
from closeranks.checkpoint.stock import UNREADABLE, Holding
from closeranks.errors import CheckpointError, CodeError, Unavailable
from closeranks.jobs.care import filed
from closeranks.jobs.care.choice import Sight

Row = dict[str, Any]
#: Outcomes that are no reason to worry.
_FINE: Final = (repair.WHOLE, "repaired", "unfinished")


def inspect(sight: Sight, into: Path | None, *, repairs: bool) -> list[Row]:
    """Look at all check sums; local.

    Parameters
    ----------
    sight : Sight
        What was chosen.
    into : Path or None
        Where lost slots go.
    repairs : bool
        Whether to make what is lost or damaged anew.

    Returns
    -------
    list of dict
        For each save ``name, run, step, generation, outcome, fine, text``.
    """
    rows = []
    every = [one.nbytes for one in sight.found] + [volume.nbytes for _, volume in sight.volumes]
    with progress("checked", sum(every)) as done:
        for one in sight.found:
            outcome, text = _judged(one, sight.places, into, done, repairs=repairs)
            header = one.header
            known = [getattr(header, key, None) for key in ("run", "step", "generation")]
            rows.append(_row(one.name, known, outcome, text))
        for name, volume in sight.volumes:
            assert sight.disk is not None
            outcome, text = filed.verify(volume, sight.disk / name, done)
            known = [volume.run, volume.step, volume.age[1]]
            rows.append(_row(name, known, outcome, text))
    return rows


@contextmanager
def progress(what: str, nbytes: int) -> Iterator[Callable[[int], None]]:
    """Show how far something has come, where a terminal watches; local.

    Parameters
    ----------
    what : str
        Is being done.
    nbytes : int
        Of all of it.

    Yields
    ------
    callable
        Takes bytes that are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task(what, total=nbytes)
        yield lambda more: bar.advance(task, more)


def _judged(
    one: Holding,
    places: Sequence[Path],
    into: Path | None,
    done: Callable[[int], None],
    *,
    repairs: bool,
) -> tuple[str, str]:
    """Check one save, and repair it if need be; gives what came out, and why."""
    if one.save is None:
        unfinished = one.state == WRITING
        return "unfinished" if unfinished else UNREADABLE, one.verdict
    try:
        outcome, text, damaged = repair.verify(one.save, done)
        if outcome == repair.LOST and _is_part(one, places):
            text += "; collect the slots of the other nodes, and give them with --directory"
        if outcome != repair.REPAIRABLE or not repairs:
            return outcome, text
        if any(locks.is_held(place, one.name) for place in places):
            return outcome, f"{text}; open in a job, whose restore repairs it"
        made = repair.repair(one.save, damaged, places, into, lambda _: None)
    except (CheckpointError, CodeError, Unavailable) as error:
        return "failed", str(error)
    where = sorted({str(path.parent) for path in made})
    return "repaired", f"{text}: made anew in {', '.join(where)}"


def _row(name: str, known: Sequence[Any], outcome: str, text: str) -> Row:
    """Say what came out."""
    found = dict(zip(("run", "step", "generation"), known, strict=True))
    return {"name": name, **found, "outcome": outcome, "fine": outcome in _FINE, "text": text}


def _is_part(one: Holding, places: Sequence[Path]) -> bool:
    """Tell whether a save was kept on more nodes than are seen."""
    assert one.save is not None
    nodes = {node for layout in one.save.layouts.values() for node in layout.ring}
    return len(nodes) > len(places)
