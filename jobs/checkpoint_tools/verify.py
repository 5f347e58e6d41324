"""Checking what there is, and repairing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.placement.slot_header import WRITING
from closeranks.checkpoint.restore import repair
from closeranks.checkpoint.restore.repair import ChecksumVerdict
from closeranks.checkpoint.restore.slot_inventory import UNREADABLE, Holding
from closeranks.errors import CheckpointError, CodeError, Unavailable
from closeranks.jobs.checkpoint_tools import tables
from closeranks.jobs.checkpoint_tools.name_choice import Sight

Row = dict[str, Any]
#: Outcomes beside those of a verdict.
_REPAIRED, _UNFINISHED, _FAILED = "repaired", "unfinished", "failed"
#: Those that are no reason to worry.
_FINE: Final = (repair.WHOLE, _REPAIRED, _UNFINISHED)


def inspect(sight: Sight, into: Path | None, *, repairs: bool) -> list[Row]:
    """Look at all check sums; local.

    Parameters
    ----------
    sight : Sight
        The chosen names, and the places where they are.
    into : Path or None
        Where lost slots go.
    repairs : bool
        Whether to make what is lost or damaged anew.

    Returns
    -------
    list of dict
        For each save ``name, run, step, generation, outcome, fine, text``.
    """
    rows, broken = [], []
    every = [one.nbytes for one in sight.found] + [volume.nbytes for _, volume in sight.volumes]
    with progress("checked", sum(every)) as done:
        for one in sight.found:
            verdict = _checked(one, sight.places, done)
            known = [getattr(one.header, key, None) for key in ("run", "step", "generation")]
            rows.append(_row(one.name, known, verdict.outcome, verdict.text))
            if verdict.outcome == repair.REPAIRABLE:
                broken.append((one, verdict, rows[-1]))
        for name, volume in sight.volumes:
            assert sight.disk is not None
            outcome, text = tables.verify(volume, sight.disk / name, done)
            rows.append(_row(name, [volume.run, volume.step, volume.age[1]], outcome, text))
    if repairs and broken:
        with progress("repaired", sum(one.nbytes for one, _, _ in broken)) as done:
            for one, verdict, row in broken:
                row |= _repaired(one, verdict, sight.places, into)
                done(one.nbytes)
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


def _checked(one: Holding, places: Sequence[Path], done: Callable[[int], None]) -> ChecksumVerdict:
    """Check one save."""
    if one.save is None:
        return ChecksumVerdict(_UNFINISHED if one.state == WRITING else UNREADABLE, one.verdict, {})
    try:
        verdict = repair.verify(one.save, done)
    except CheckpointError as error:
        return ChecksumVerdict(_FAILED, str(error), {})
    if verdict.outcome == repair.LOST and _is_part(one, places):
        told = "collect the slots of the other nodes, and give them with --directory"
        return verdict._replace(text=f"{verdict.text}; {told}")
    return verdict


def _repaired(
    one: Holding, verdict: ChecksumVerdict, places: Sequence[Path], into: Path | None
) -> Row:
    """Repair a save; gives what is to be said of it now."""
    assert one.save is not None
    if any(slot_locks.is_held(place, one.name) for place in places):
        return {"text": f"{verdict.text}; open in a job, whose restore repairs it"}
    try:
        made = repair.repair(one.save, verdict.damaged, places, into)
    except (CheckpointError, CodeError, Unavailable) as error:
        return {"outcome": _FAILED, "text": str(error)}
    where = ", ".join(sorted({str(path.parent) for path in made}))
    return {"outcome": _REPAIRED, "fine": True, "text": f"{verdict.text}: made anew in {where}"}


def _row(name: str, known: Sequence[Any], outcome: str, text: str) -> Row:
    """Say what came out."""
    found = dict(zip(("run", "step", "generation"), known, strict=True))
    return {"name": name, **found, "outcome": outcome, "fine": outcome in _FINE, "text": text}


def _is_part(one: Holding, places: Sequence[Path]) -> bool:
    """Tell whether a save was kept on more nodes than are seen."""
    assert one.save is not None
    nodes = {node for layout in one.save.layouts.values() for node in layout.ring}
    return len(nodes) > len(places)
