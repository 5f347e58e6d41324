"""The checkpoints that a name on the command line stands for.

`look` finds them in memory and on disk.  `state` asks SLURM whether the job
of a name goes on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from closeranks.checkpoint.disk.saved_files import SavedFile, find_saves
from closeranks.checkpoint.memory.run_key import JOB
from closeranks.checkpoint.restore import slot_inventory
from closeranks.checkpoint.restore.slot_inventory import Holding
from closeranks.errors import NotFound, UsageError

#: How long squeue may take, seconds.
_PATIENCE_S: Final = 20.0
#: States of jobs that will not run any more.
_OVER: Final = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "TIMEOUT",
}  # fmt: skip


def state(job: str) -> str:
    """Ask SLURM for a job.

    Parameters
    ----------
    job : str
        Its number.

    Returns
    -------
    str
        Why what it has left must stay; empty if SLURM knows that it is over.
    """
    words = ["squeue", "-h", "-j", job, "-o", "%T"]
    try:
        asked = subprocess.run(
            words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        return f"job {job}: no squeue here to ask"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job}: squeue failed, {error}"
    if asked.returncode:
        # That is how it says that it knows no such job any more.
        if "invalid job id" in asked.stderr.lower():
            return ""
        return f"job {job}: squeue failed, {' '.join(asked.stderr.split())[:80]}"
    alive = sorted(set(asked.stdout.split()) - _OVER)
    return f"job {job} is {', '.join(alive)}" if alive else ""


def job_of(key: str) -> str | None:
    """Give the SLURM job that a name carries, as far as it looks like one.

    Parameters
    ----------
    key : str
        Name of checkpoints, with the job.

    Returns
    -------
    str or None
        Its number.
    """
    _, dot, job = key.rpartition(".")
    found = JOB.fullmatch(job) if dot else None
    return found["job"] if found else None


def is_meant(key: str, name: str) -> bool:
    """Say whether a name is meant by what somebody has written.

    Parameters
    ----------
    key : str
        Name of checkpoints, with the job.
    name : str
        The same, or without the job.

    Returns
    -------
    bool
        True for ``train.4711`` if ``train`` was written, false for ``train.eval``.
    """
    plain, dot, job = key.rpartition(".")
    return name == key or bool(dot and name == plain and JOB.fullmatch(job))


def is_held_as(key: str, name: str) -> bool:
    """Say whether slots in memory are meant by what somebody has written.

    Their names all end in a job or a run, those of files on disk in none.

    Parameters
    ----------
    key : str
        Name of checkpoints, with the job or the run.
    name : str
        The same, or without it.

    Returns
    -------
    bool
        True for ``train.nightly`` if ``train`` was written, false for
        ``train.eval.nightly``.
    """
    return name in (key, key.rpartition(".")[0])


@dataclass(frozen=True)
class Sight:
    """The chosen names, and the places where they were looked for.

    Made by `look`.

    Attributes
    ----------
    places : tuple of Path
        Folders of slots.
    found : tuple of Holding
        Saves in memory, by name, the newest first.
    disk : Path or None
        Where else was looked.
    volumes : tuple of (str, SavedFile)
        Saves on disk and their names, the newest first.
    """

    places: tuple[Path, ...]
    found: tuple[Holding, ...]
    disk: Path | None = None
    volumes: tuple[tuple[str, SavedFile], ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of what is in memory, each once."""
        return list(dict.fromkeys(one.name for one in self.found))

    @property
    def where(self) -> str:
        """Where it was looked for, for a reader."""
        every = [*self.places, *filter(None, [self.disk])]
        return ", ".join(map(str, every)) or "the memory of this node"


def look(
    verb: str, name: str | None, directories: Sequence[Path], persist: Path | None = None
) -> Sight:
    """Look for what somebody means.

    Parameters
    ----------
    verb : str
        For the text of errors.
    name : str or None
        Name on the command line; None for all.
    directories : sequence of Path
        Where to look, see `closeranks.checkpoint.restore.slot_inventory.places`.
    persist : Path, optional
        Where to look on disk, too.

    Returns
    -------
    Sight
        In which something is of this name.

    Raises
    ------
    UsageError
        If there is no such folder.
    NotFound
        If there is nothing of this name.
    """
    places = slot_inventory.places(directories)
    every = slot_inventory.holdings(slot_inventory.look(places))
    if persist is not None and not persist.is_dir():
        raise UsageError(f"checkpoint {verb}", f"no folder {persist}", "give that of persist=")
    filed = [(one, volume) for one, lot in (find_saves(persist) if persist else {}).items()
             for volume in lot]  # fmt: skip
    found = tuple(one for one in every if name is None or is_held_as(one.name, name))
    # On disk names are without the job.
    of_disk = tuple((one, volume) for one, volume in filed
                    if name is None or is_meant(one, name) or is_meant(name, one))  # fmt: skip
    if name is not None and not found and not of_disk:
        known = dict.fromkeys([*(one.name for one in every), *(one for one, _ in filed)])
        alike = sorted(known, key=lambda one: not one.startswith(name))
        there = ", ".join(alike[:8]) or "nothing"
        raise NotFound(f"checkpoint {verb}", f"nothing called {name}; there is {there}")
    return Sight(tuple(places), found, persist, of_disk)


def only(names: Sequence[str], verb: str) -> str:
    """Give the one name that there is.

    Parameters
    ----------
    names : sequence of str
        Names that were found.
    verb : str
        For the text of an error.

    Returns
    -------
    str
        With the job.

    Raises
    ------
    UsageError
        If there are several, or none.
    """
    if len(names) != 1:
        told = ", ".join(names[:8]) or "nothing"
        raise UsageError(f"checkpoint {verb}", f"there is {told}", "say which one, with its job")
    return names[0]
