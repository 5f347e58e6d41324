"""The files of a name on disk: which saves are whole, and how ranks read them.

Each save has a folder, in which each node of the job has one file::

    <persist>/<name>/<epoch>-<generation>-step-<step>/node-<number>.h5

A save is whole if all of its files are there, complete and of one save.  The
files decide; there is no list of saves.

Nodes see the same files, or each its own, or some of both.  The names that
each node sees are compared by a digest, and exchanged only if they differ.  If
its node sees a file, a rank reads it; else a rank of another node reads and
sends.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import xxhash

from closeranks.checkpoint.disk.hdf5_reader import Archive
from closeranks.checkpoint.disk.hdf5_writer import About, sync
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore.fetch import Want, exchange
from closeranks.checkpoint.restore.generation_choice import Objection
from closeranks.checkpoint.restore.recovery_search import RankNodes, Unreadable, Wanted
from closeranks.checkpoint.state import rank_image
from closeranks.checkpoint.state.device_staging import Filling
from closeranks.checkpoint.state.rank_image import Description
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


_FOLDER: Final = re.compile(r"([0-9a-f]{16})-(\d{8,20})-step-(-?\d{1,20})", re.ASCII)
_FILE: Final = re.compile(r"node-\d{6,}[.]h5", re.ASCII)
#: Files that have no name yet, too.
_OURS: Final = re.compile(r"node-(\d{6,})[.]h5|[.]node-(\d{6,})[.]h5[.][0-9a-f]{16}", re.ASCII)


class File(NamedTuple):
    """A file and its header.

    Attributes
    ----------
    name : str
        Below the folder of the checkpoints: that of the save, and its own.
    nbytes : int
        Its size.
    about : About or None
        The header of the file.
    problem : str
        Why it says nothing.
    """

    name: str
    nbytes: int
    about: About | None
    problem: str = ""


@dataclass(frozen=True)
class SavedFile:
    """The files of one save.

    Made by `bound` and `find_saves`.

    Attributes
    ----------
    folder : str
        Name of its folder.
    age : tuple of int
        Epoch and generation, which order saves.
    step : int
        The caller's number.
    files : tuple of File
        The files that were found.
    """

    folder: str
    age: tuple[int, int]
    step: int
    files: tuple[File, ...]

    @property
    def abouts(self) -> Mapping[str, About]:
        """Name -> header, of the files that have one."""
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
        """Give the file that a rank is in; of a save without objection."""
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
            members[peer] != mine for mine in set(members.values()) for peer in mine
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
        Folder and name of each, ascending; files with other names are left
        out.

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
    """Read the header of a file.

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
        With its header, or the reason why it has none.
    """
    try:
        _trusted((folder / name).parent)
        with Archive(folder / name) as archive:
            return File(name, archive.nbytes, archive.about)
    except CheckpointError as error:
        with suppress(OSError):
            return File(name, (folder / name).lstat().st_size, None, error.problem)
        return File(name, 0, None, error.problem)


def bound(files: Iterable[File]) -> list[SavedFile]:
    """Put files together that are of one save.

    Pure.

    Parameters
    ----------
    files : iterable of File
        Of one name.

    Returns
    -------
    list of SavedFile
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
            made.append(SavedFile(folder, age, int(parts[3]), tuple(lot)))
    return sorted(made, key=lambda one: one.age, reverse=True)


def find_saves(directory: Path, name: str | None = None) -> dict[str, list[SavedFile]]:
    """List the saves on disk.

    Local; for a command line: reads no data.

    Parameters
    ----------
    directory : Path
        As given for ``persist``.
    name : str, optional
        Of the checkpoints; all if not given.

    Returns
    -------
    dict of str to list of SavedFile
        Name -> saves, the newest first; `SavedFile.objection` tells what is wrong.

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
        The damaged data sets.
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
    """Remove a node's file of a save that not all nodes could write.

    Local; once all have tried.  A file that cannot be removed stays.

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
    """Remove the saves before one.

    Local; once something newer is whole on disk.  A file that cannot be
    removed stays.

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
        Its final name.
    """
    return name.startswith(f".{whole}.") and bool(_OURS.fullmatch(name))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Give the entries of a folder."""
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


#: Files that a rank has open at once.
_OPEN: Final = 16
#: What is asked for of a rank.
_DATA, _TEXT = 0, 1
_NEUTRAL: Final = np.iinfo(np.int64).max


class SavedFileIndex:
    """The files of a name.

    Parameters
    ----------
    channel : ControlChannel
        Between the ranks.
    nodes : RankNodes
        Where they are.
    folder : Path
        Of the checkpoints of the name.

    Attributes
    ----------
    channel, nodes, folder
        As given.
    """

    def __init__(self, channel: ControlChannel, nodes: RankNodes, folder: Path) -> None:
        self.channel, self.nodes, self.folder = channel, nodes, folder
        #: Which nodes see a file, where not all do.
        self._seen: dict[str, tuple[int, ...]] = {}

    def scan(self) -> list[SavedFile]:
        """Find the saves on disk.

        Collective.

        Returns
        -------
        list of SavedFile
            The newest first; the same on all ranks.

        Raises
        ------
        CheckpointError
            On all ranks, if a node cannot look into the folder.
        """
        first = self._is_first()
        found = self.channel.taken("restore", lambda: names(self.folder) if first else [])
        digest = xxhash.xxh3_64_intdigest("\n".join(found).encode()) >> 1
        pair = [digest, ~digest] if first else [_NEUTRAL, _NEUTRAL]
        least = self.channel.least(pair)
        self._seen = {}
        if least[0] != ~least[1]:  # nodes see different files
            for rank, lot in enumerate(self.channel.everything(found)):
                for name in lot:
                    here = self._seen.get(name, ())
                    self._seen[name] = (*here, self.nodes.nodes[rank])
            found = sorted(self._seen)
        mine = [look(self.folder, name) for at, name in enumerate(found)
                if first and self._turn(name, at) == self.nodes.here]  # fmt: skip
        own = [[name, nbytes, about.encode().decode() if about else None, problem]
               for name, nbytes, about, problem in mine]  # fmt: skip
        return bound(
            File(name, nbytes, About.decode(text.encode()) if text else None, problem)
            for lot in self.channel.everything(own) for name, nbytes, text, problem in lot
        )  # fmt: skip

    def damaged(self, save: SavedFile) -> list[str]:
        """Look at all check sums of a save.

        Collective; each rank reads its part.

        Parameters
        ----------
        save : SavedFile
            Which.

        Returns
        -------
        list of str
            The damaged data sets, of all ranks.
        """
        names = sorted(save.abouts)
        mine = [name for at, name in enumerate(names) if self.server(name, at) == self.nodes.rank]
        found = [what for name in mine for what in damaged(self.folder, name)]
        return [what for lot in self.channel.everything(found) for what in lot]

    def sees(self, name: str) -> bool:
        """Tell whether this rank's node sees a file.  Local."""
        return self.nodes.here in self._seen.get(name, (self.nodes.here,))

    def is_shared(self) -> bool:
        """Tell whether all nodes see all files, as far as was looked.  Local."""
        return not self._seen

    def server(self, name: str, number: int) -> int:
        """Give a rank that reads a file for others; ranks take turns.  Local."""
        node = self._turn(name, number)
        return self.nodes.turn(node, number // len(self.nodes.ranks))

    def _turn(self, name: str, number: int) -> int:
        """Give a node that sees a file; nodes take turns."""
        seen = self._seen.get(name) or tuple(self.nodes.ranks)
        return seen[number % len(seen)]

    def _is_first(self) -> bool:
        """Whether this rank looks for those of its node."""
        return self.nodes.turn(self.nodes.here, 0) == self.nodes.rank


class Files:
    """A save in files; a `closeranks.checkpoint.restore.recovery_search.SaveSource`.

    Parameters
    ----------
    save : SavedFile
        The save, without objection.
    index : SavedFileIndex
        It is from.
    """

    def __init__(self, save: SavedFile, index: SavedFileIndex) -> None:
        self._save, self._index, self._channel = save, index, index.channel
        self._file = {rank: (name, about) for name, about in save.abouts.items()
                      for rank, _, _ in about.ranks}  # fmt: skip
        self._number = {name: at for at, name in enumerate(sorted(save.abouts))}
        self._open: dict[str, Archive] = {}
        self._problem: CheckpointError | None = None

    @property
    def world(self) -> int:
        """Ranks that saved."""
        return self._save.world

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks of its group.  Local."""
        return self._file[rank][1].members

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give the descriptions of old ranks.  Collective."""
        texts = {rank: np.empty(self._size(rank)[0], np.uint8) for rank in ranks}
        self._get([Want(Share(_TEXT, 0, rank), 0, text) for rank, text in texts.items()])
        return self._channel.taken("restore", lambda: {
            rank: rank_image.parse(text.tobytes(), self._size(rank)[1])
            for rank, text in texts.items()
        })  # fmt: skip

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""
        self._get([Want(Share(_DATA, 0, rank), at, target) for rank, at, target in wants])

    def close(self) -> None:
        """Let go of the files.  Local."""
        while self._open:
            self._open.popitem()[1].close()

    def _get(self, wants: Sequence[Want]) -> None:
        """Get bytes: from files that this node sees, else from another rank.

        The data of a rank are one share here, its description another one.
        """
        far: list[Want] = []
        self._channel.taken("restore", lambda: self._get_near(wants, far))
        if not self._index.is_shared():
            exchange(far, self._channel, self._server, self._served)
        problem, self._problem = self._problem, None
        try:
            self._channel.together("restore", problem)
        except CheckpointError as error:
            raise Unreadable("restore", error.problem, error.remedy) from error

    def _get_near(self, wants: Sequence[Want], far: list[Want]) -> None:
        """Get bytes of files that this node sees; note the rest."""
        filling = Filling()
        for want in sorted(wants, key=lambda want: self._file[want.share.member][0]):
            if self._index.sees(self._file[want.share.member][0]):
                filling.fill(want.target, partial(self._read_on, want))
            else:
                far.append(want)
        filling.end()

    def _read_on(self, want: Want, at: int, out: Bytes) -> None:
        """Read bytes of a want, from a place among them on."""
        self._read(want.share, want.at + at, out)

    def _read(self, share: Share, at: int, target: Bytes) -> None:
        """Read bytes; after the first problem no more, for all is in vain."""
        if self._problem is not None:
            return
        try:
            archive = self._archive(self._file[share.member][0])
            if share.group == _DATA:
                archive.read(share.member, at, target)
            else:
                text = np.frombuffer(archive.text(share.member), np.uint8)
                np.copyto(target, text[at : at + target.size])
        except CheckpointError as error:
            self._problem = error

    def _served(self, share: Share, at: int, nbytes: int) -> Bytes:
        """Read bytes for another rank."""
        target = np.zeros(nbytes, np.uint8)
        self._read(share, at, target)
        return target

    def _server(self, share: Share) -> int:
        """Give the rank that reads a file for others."""
        name, _ = self._file[share.member]
        return self._index.server(name, self._number[name])

    def _archive(self, name: str) -> Archive:
        """Open a file; of many the one that has been open longest is closed."""
        if name not in self._open:
            if len(self._open) >= _OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = Archive(self._index.folder / name)
            if self._open[name].about != self._save.abouts[name]:
                raise CheckpointError("restore", f"{name}: another file than before")
        return self._open[name]

    def _size(self, rank: int) -> tuple[int, int]:
        """Give the bytes of the description and of the data of a rank."""
        return next((head, body) for one, head, body in self._file[rank][1].ranks if one == rank)
