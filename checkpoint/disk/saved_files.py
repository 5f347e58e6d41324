"""The files of a name on disk, and which saves are whole there.

Each save has a folder, in which each node of the job has one file::

    <persist>/<name>/<epoch>-<generation>-step-<step>/node-<number>.h5

A save is whole if all of its files are there, complete and of one save: what
is found decides, no list, and nobody has to be asked.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from closeranks.checkpoint.disk.hdf5_reader import Archive
from closeranks.checkpoint.disk.hdf5_writer import About, sync
from closeranks.checkpoint.restore.generation_choice import Objection
from closeranks.errors import CheckpointError

_FOLDER: Final = re.compile(r"([0-9a-f]{16})-(\d{8,20})-step-(-?\d{1,20})", re.ASCII)
_FILE: Final = re.compile(r"node-\d{6,}[.]h5", re.ASCII)
#: Files that have no name yet, too.
_OURS: Final = re.compile(r"node-(\d{6,})[.]h5|[.]node-(\d{6,})[.]h5[.][0-9a-f]{16}", re.ASCII)


class File(NamedTuple):
    """A file that somebody has looked into.

    Attributes
    ----------
    name : str
        Below the folder of the checkpoints: that of the save, and its own.
    nbytes : int
        Its size.
    about : About or None
        What it says of itself.
    problem : str
        Why it says nothing.
    """

    name: str
    nbytes: int
    about: About | None
    problem: str = ""


@dataclass(frozen=True)
class Volume:
    """What is on disk of one save.

    Made by `bound` and `volumes`.

    Attributes
    ----------
    folder : str
        Name of its folder.
    age : tuple of int
        Epoch and generation, which order saves.
    step : int
        The caller's number.
    files : tuple of File
        Those that were found.
    """

    folder: str
    age: tuple[int, int]
    step: int
    files: tuple[File, ...]

    @property
    def abouts(self) -> Mapping[str, About]:
        """Name -> what a file says of itself, of those that say something."""
        return {file.name: file.about for file in self.files if file.about is not None}

    @property
    def run(self) -> str | None:
        """Of which run it is; None if no file says it."""
        return next((about.run for about in self.abouts.values()), None)

    @property
    def world(self) -> int:
        """Ranks that saved; 0 if no file says it."""
        return next((about.world for about in self.abouts.values()), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def file_of(self, rank: int) -> tuple[str, About]:
        """Give the file that a rank is in; of a volume without objection."""
        return next((name, about) for name, about in self.abouts.items()
                    if any(rank == one for one, _, _ in about.ranks))  # fmt: skip

    def objection(self) -> Objection | None:
        """Say why it cannot be restored, or None."""
        problem = self._problem()
        return None if problem is None else Objection(f"on disk: {problem}", (), 0)

    def _problem(self) -> str | None:
        """Say what is wrong with it."""
        every = list(self.abouts.values())
        if not every:
            return "; ".join(file.problem for file in self.files[:2])
        if len({(about.name, about.run, about.world, about.files) for about in every}) > 1 or any(
            (about.age, about.step) != (self.age, self.step) for about in every
        ):
            return "files of several saves"
        if len({about.node for about in every}) < every[0].files:
            bad = "".join(f" ({file.problem})" for file in self.files if file.about is None)[:400]
            return f"{len(every)} complete files of {every[0].files}{bad}"
        members = {rank: about.members for about in every for rank, _, _ in about.ranks}
        if sorted(members) != list(range(every[0].world)) or any(
            members[mate] != mine for mine in set(members.values()) for mate in mine
        ):
            return f"not the files of {every[0].world} ranks"
        return None


def folder_of(about: About) -> str:
    """Name the folder of a save.  Local."""
    return f"{about.epoch:016x}-{about.generation:08d}-step-{about.step}"


def file_of(about: About) -> str:
    """Name the file of a node.  Local."""
    return f"node-{about.node:06d}.h5"


def names(folder: Path) -> list[str]:
    """List the files of a name.

    Local.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of a name; need not be there.

    Returns
    -------
    list of str
        Folder and name of each, ascending; what is called otherwise is left out.

    Raises
    ------
    CheckpointError
        If the folder is a link, or not this user's.
    """
    with suppress(FileNotFoundError):
        folder.lstat()
        return sorted(_names(folder))
    return []


def _names(folder: Path) -> Iterator[str]:
    """List the files of a folder that is there."""
    for of in _entries(_trusted(folder)):
        if _FOLDER.fullmatch(of.name) and of.is_dir(follow_symlinks=False):
            for file in _entries(folder / of.name):
                if _FILE.fullmatch(file.name):
                    yield f"{of.name}/{file.name}"


def look(folder: Path, name: str) -> File:
    """Look what a file says of itself.

    Local.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of a name.
    name : str
        As `names` has given it.

    Returns
    -------
    File
        With what it says, or why it says nothing.
    """
    try:
        _trusted((folder / name).parent)
        with Archive(folder / name) as archive:
            return File(name, archive.nbytes, archive.about)
    except CheckpointError as error:
        with suppress(OSError):
            return File(name, (folder / name).lstat().st_size, None, error.problem)
        return File(name, 0, None, error.problem)


def bound(files: Iterable[File]) -> list[Volume]:
    """Put files together that are of one save.

    Pure.

    Parameters
    ----------
    files : iterable of File
        Of one name.

    Returns
    -------
    list of Volume
        The newest first.
    """
    by_folder: dict[str, list[File]] = {}
    for file in files:
        by_folder.setdefault(file.name.partition("/")[0], []).append(file)
    made = []
    for folder, lot in by_folder.items():
        parts = _FOLDER.fullmatch(folder)
        if parts is not None:
            age = int(parts[1], 16), int(parts[2])
            made.append(Volume(folder, age, int(parts[3]), tuple(lot)))
    return sorted(made, key=lambda volume: volume.age, reverse=True)


def volumes(directory: Path, name: str | None = None) -> dict[str, list[Volume]]:
    """List what is on disk.

    Local; for a command line: reads no data.

    Parameters
    ----------
    directory : Path
        As given for ``persist``.
    name : str, optional
        Of the checkpoints; all if not given.

    Returns
    -------
    dict of str to list of Volume
        Name -> saves, the newest first; `Volume.objection` tells what is wrong.

    Raises
    ------
    CheckpointError
        If a folder is a link, or not this user's.
    """
    every = (
        [name]
        if name is not None
        else sorted(
            entry.name for entry in _entries(directory) if entry.is_dir(follow_symlinks=False)
        )
    )
    found = {}
    for one in every:
        folder = directory / one
        found[one] = bound(look(folder, file) for file in names(folder))
    return {one: lot for one, lot in found.items() if lot}


def damaged(folder: Path, name: str) -> list[str]:
    """Look at all check sums of a file.

    Local.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of a name.
    name : str
        As `names` has given it.

    Returns
    -------
    list of str
        What is damaged.
    """
    try:
        with Archive(folder / name) as archive:
            return archive.damaged()
    except CheckpointError as error:
        return [error.problem]


def make(folder: Path, about: About) -> Path:
    """Make the folder of a save if need be; gives the name of a node's file.

    Local.

    Raises
    ------
    CheckpointError
        If that is not possible, or a folder is a link, or not this user's.
    """
    place = folder / folder_of(about)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _trusted(folder)
        place.mkdir(exist_ok=True)
        sync(folder)
    except OSError as error:
        problem = f"{place}: {error.strerror}"
        raise CheckpointError("persist", problem, "pass persist= of a place to write to") from error
    return _trusted(place) / file_of(about)


def discard(folder: Path, about: About, *, is_written: bool) -> None:
    """Remove what a node has of a save that not all nodes could write.

    Local; once all have tried.  What cannot be removed stays.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of a name.
    about : About
        Of the file of the node.
    is_written : bool
        Whether that was just made; else its folder alone goes, if it is empty.
    """
    with suppress(OSError, CheckpointError):
        place = _trusted(_trusted(folder) / folder_of(about))
        if is_written:
            (place / file_of(about)).unlink(missing_ok=True)
        place.rmdir()


def prune(
    folder: Path, before: tuple[int, int], others: Collection[str], *, node: int | None = None
) -> None:
    """Remove what is older than a save.

    Local; once something newer is whole on disk.  What cannot be removed stays.

    Parameters
    ----------
    folder : Path
        Of the checkpoints of a name.
    before : tuple of int
        Age of the oldest save that is kept.
    others : collection of str
        Folders of other runs: they stay.
    node : int, optional
        Remove the files of this node alone.
    """
    with suppress(OSError, CheckpointError):
        for of in _entries(_trusted(folder)):
            parts = _FOLDER.fullmatch(of.name)
            if parts is None or of.name in others or (int(parts[1], 16), int(parts[2])) >= before:
                continue
            place = _trusted(folder / of.name)
            with suppress(OSError):
                for file in _entries(place):
                    ours = _OURS.fullmatch(file.name)
                    if ours and node in (None, int(ours[1] or ours[2])):
                        (place / file.name).unlink(missing_ok=True)
                place.rmdir()


def is_begun(name: str, whole: str) -> bool:
    """Tell whether a name is that of a file which was being written.

    Local.

    Parameters
    ----------
    name : str
        In the folder of a save.
    whole : str
        What it would be called in the end.
    """
    return name.startswith(f".{whole}.") and bool(_OURS.fullmatch(name))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Give what is in a folder."""
    try:
        with os.scandir(folder) as found:
            yield from found
    except OSError as error:
        problem = f"{folder}: {error.strerror}"
        raise CheckpointError("restore", problem, "look at persist=") from error


def _trusted(folder: Path) -> Path:
    """Refuse a folder that is a link, or not this user's; gives it back."""
    try:
        found = folder.lstat()
    except OSError as error:
        problem = f"{folder}: {error.strerror}"
        raise CheckpointError("restore", problem, "look at persist=") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise CheckpointError("persist", f"{folder}: not a folder of this user",
                              "look who made it, then remove it")  # fmt: skip
    return folder
