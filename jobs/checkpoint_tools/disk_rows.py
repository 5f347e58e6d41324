"""Saves on disk, described and checked as those in memory are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.disk.saved_files import Volume
from closeranks.checkpoint.restore.repair import LOST, WHOLE

Row = dict[str, Any]
#: State of what is in files.
ON_DISK: Final = "on disk"


def row(name: str, volume: Volume, folder: Path, now: float) -> Row:
    """Describe a save on disk as plain JSON; local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    volume : Volume
        Which.
    folder : Path
        Of the checkpoints of the name.
    now : float
        Seconds since 1970.

    Returns
    -------
    dict
        As of `closeranks.checkpoint.restore.slot_inventory.Holding.row`: its
        shares are files.
    """
    objection = volume.objection()
    changed = [0.0]
    for file in volume.files:
        with suppress(FileNotFoundError):
            changed.append((folder / file.name).lstat().st_mtime)
    epoch, generation = volume.age
    abouts = list(volume.abouts.values())
    return {
        "name": name, "run": volume.run, "step": volume.step, "generation": generation,
        "epoch": epoch, "state": ON_DISK, "ranks": volume.world or None,
        "groups": None, "groups_seen": 0,
        "shares": abouts[0].files if abouts else len(volume.files),
        "shares_present": len(abouts), "files": len(volume.files), "bytes": volume.nbytes,
        "age_s": max(0.0, round(now - max(changed), 1)), "locked": False, "owner": "",
        "restorable": objection is None, "verdict": objection.text if objection else WHOLE,
    }  # fmt: skip


def verify(volume: Volume, folder: Path, done: Callable[[int], None]) -> tuple[str, str]:
    """Look at all check sums of a save on disk; local.

    Parameters
    ----------
    volume : Volume
        Which.
    folder : Path
        Of the checkpoints of the name.
    done : callable
        Is told how many bytes were looked at, file by file.

    Returns
    -------
    outcome, text : str
        ``whole`` or ``lost``, and why: files have no parity.
    """
    objection = volume.objection()
    if objection is not None:
        return LOST, objection.text
    wrong: list[str] = []
    for file in volume.files:
        wrong += saved_files.damaged(folder, file.name)
        done(file.nbytes)
    told = ", ".join(wrong[:4]) + (", ..." if wrong[4:] else "")
    return (LOST, f"damaged on disk: {told}") if wrong else (WHOLE, "on disk")
