"""Checkpoints removed, and a save written as one plain file.

`clean` removes checkpoints, and says why it leaves others.  `from_memory` and
`from_disk` write a save as one file, for ``closeranks checkpoint convert``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.disk.export import export
from closeranks.checkpoint.disk.saved_files import Files, SavedFile, SavedFileIndex
from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.restore import repair, slot_inventory
from closeranks.checkpoint.restore.generation_choice import Save
from closeranks.checkpoint.restore.recovery_search import RankNodes
from closeranks.checkpoint.restore.slot_inventory import Holding
from closeranks.errors import CheckpointError, NotFound, UsageError
from closeranks.jobs.checkpoint_tools import name_choice
from closeranks.jobs.checkpoint_tools.name_choice import Sight, job_of
from closeranks.jobs.checkpoint_tools.verify import progress

Row = dict[str, Any]
_AGE: Final = re.compile(r"(\d{1,6})\s*(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_age(text: str) -> float:
    """Read an age.

    Parameters
    ----------
    text : str
        For example ``2d``, ``12h``, ``30min`` or ``90s``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        problem = f"--older-than {text}"
        raise UsageError("checkpoint clean", problem, "write 2d, 12h, 30min or 90s")
    return float(int(found[1]) * _SECONDS[found[2]])


def clean(sight: Sight, older_s: float, *, removes: bool) -> list[Row]:
    """Say what would be removed, or remove it; local.

    Parameters
    ----------
    sight : Sight
        The chosen names, and the places where they are.
    older_s : float
        In seconds; younger files stay.
    removes : bool
        Whether to remove it.

    Returns
    -------
    list of dict
        As of `Holding.row`, and ``kept`` and ``fate``.
    """
    now, ask = time.time(), cache(name_choice.state)
    rows = []
    for one in sight.found:
        owner = slot_locks.owners(sight.places, one.name)
        row = one.row(now, owner=owner)
        if row["age_s"] < older_s:
            continue
        job = job_of(one.name)
        reason = f"open: {owner}" if owner else ask(job) if job else ""
        if not reason and removes:
            reason = slot_inventory.remove(one, sight.places)
        done = "removed" if removes else "can be removed"
        fate = f"kept: {reason}" if reason else done
        rows.append({**row, "kept": bool(reason), "fate": fate})
    for place in sight.places if removes else ():
        slot_locks.tidy(place)
    return rows


def from_memory(found: Sequence[Holding], step: int | None, output: Path) -> int:
    """Write the newest save in memory that can be restored into one file.

    Parameters
    ----------
    found : sequence of Holding
        Of one name, the newest first.
    step : int or None
        This one and no other.
    output : Path
        A file of this name is replaced.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    NotFound
        If there is no such step.
    CheckpointError
        If none can be restored from what is here, or it cannot be read or written.
    """
    saves = [one.save for one in found if one.save is not None]
    save = _pick(saves, step, "collect the slots of all nodes, and give them with --directory")
    with progress("checked", sum(one.nbytes for one in found if one.save is save)) as done:
        verdict = repair.verify(save, done)
    objection = save.objection(verdict.damaged)
    if objection is not None:
        raise CheckpointError("checkpoint convert", objection.text, "take another step")
    data = sum(size.body for layout in save.layouts.values() for size in layout.sizes.values())
    header = save.header
    about = _about(header.name, header.run, header.step, header.generation, header.world)
    with (
        repair.readable(save, verdict.damaged, output.resolve().parent) as source,
        progress("written", data) as done,
    ):
        export(source, about, output, done, check=lambda: repair.check_unchanged(save))
    return save.step


def from_disk(
    name: str, found: Sequence[SavedFile], folder: Path, step: int | None, output: Path
) -> int:
    """Write the newest save on disk that is whole into one file.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    found : sequence of SavedFile
        Of this name, the newest first.
    folder : Path
        Of the checkpoints of the name.
    step : int or None
        This one and no other.
    output : Path
        A file of this name is replaced.

    Returns
    -------
    int
        Its step.

    Raises
    ------
    NotFound
        If there is no such step.
    CheckpointError
        If none is whole, or it cannot be read or written.
    """
    volume = _pick(found, step, "look at its files")
    files = Files(volume, SavedFileIndex(SingleProcessChannel(), RankNodes([0], 0), folder))
    sizes = [body for one in volume.abouts.values() for _, _, body in one.ranks]
    about = _about(name, volume.run or "", volume.step, volume.age[1], volume.world)
    with closing(files), progress("written", sum(sizes)) as done:
        export(files, about, output, done)
    return volume.step


def _about(name: str, run: str, step: int, generation: int, ranks: int) -> dict[str, str | int]:
    """Say which save it is."""
    return {"name": name, "run": run, "step": step, "generation": generation, "ranks": ranks}


_Kind = TypeVar("_Kind", Save, SavedFile)


def _pick(found: Sequence[_Kind], step: int | None, remedy: str) -> _Kind:
    """Take the newest save that can be restored, as far as headers tell."""
    wanted = [one for one in found if step in (None, one.step)]
    if not wanted:
        known = ", ".join(str(one.step) for one in found) or "none"
        told = "nothing that was saved" if step is None else f"no step {step}"
        raise NotFound("checkpoint convert", f"{told}; there are {known}")
    objections = [one.objection() for one in wanted]
    for one, objection in zip(wanted, objections, strict=True):
        if objection is None:
            return one
    assert objections[0] is not None
    raise CheckpointError("checkpoint convert", objections[0].text, remedy)
