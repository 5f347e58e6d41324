"""Folders of slots, for tools that look after them without a running job.

Each folder is taken for a node: the one of this node, or several into which
the slots of nodes were collected.  Looking changes nothing.  `copy` and
`carry` put a slot into another folder, in one step and never over a slot that
is in use; `remove` removes slots that no job needs.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple

from closeranks.checkpoint.memory import slot_file, slot_locks
from closeranks.checkpoint.placement.slot_header import NAMED, STATES, Header, name_of, place_of
from closeranks.checkpoint.restore.generation_choice import Found, Objection, Save, saves
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.comms.shm.shared_folder import ROOT, is_own_folder
from closeranks.errors import CheckpointError, Unavailable, UsageError

#: State of what cannot be read.
UNREADABLE = "unreadable"


class SlotNamedFile(NamedTuple):
    """A file that is called as slots are.

    Attributes
    ----------
    node : int
        Which of the folders it is in.
    path : Path
        Of the file.
    name : str
        Of the checkpoints, with the job.
    nbytes : int
        Its size.
    changed : float
        When its header was last written, seconds since 1970.
    header : Header or None
        Its header; None if it cannot be read.
    problem : str
        Why not.
    """

    node: int
    path: Path
    name: str
    nbytes: int
    changed: float
    header: Header | None
    problem: str


def places(directories: Sequence[Path]) -> list[Path]:
    """Find the folders of slots that a caller means.

    Local.

    Parameters
    ----------
    directories : sequence of Path
        Folders of slots, or such as a Checkpointer takes for ``directory``; none
        for that of this node.

    Returns
    -------
    list of Path
        Folders of slots; empty if this node has none.

    Raises
    ------
    UsageError
        If one is not there, not this user's, or others may write into it.
    """
    mine = f"closeranks-{os.getuid()}"
    if not directories and not os.path.lexists(ROOT / mine):
        return []
    inner = [place / mine for place in directories or [ROOT]]
    outer = directories or inner
    found = [a if os.path.lexists(a) else b for a, b in zip(inner, outer, strict=True)]
    for place in found:
        _check_place(place)
    twice = [str(place) for at, place in enumerate(found) if place in found[:at]]
    if twice:
        raise UsageError("checkpoint", f"{twice[0]} twice", "give each folder once")
    return found


def look(places: Sequence[Path]) -> list[SlotNamedFile]:
    """List the slots in folders.

    Local.

    Parameters
    ----------
    places : sequence of Path
        As `places` gives them.

    Returns
    -------
    list of SlotNamedFile
        By name; a file that vanishes meanwhile is left out.
    """
    found = []
    for node, place in enumerate(places):
        for path in sorted(place.iterdir()):
            if parts := NAMED.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    found.append(_kept(node, path, parts[1]))
    return found


@dataclass(frozen=True)
class Holding:
    """The slots of one save in some folders, or files of no use.

    Made by `holdings`.

    Attributes
    ----------
    name : str
        Of the checkpoints, with the job.
    files : tuple of SlotNamedFile
        All of it.
    save : Save or None
        None if its files cannot be read, or nothing in them was complete.
    """

    name: str
    files: tuple[SlotNamedFile, ...]
    save: Save | None

    @property
    def header(self) -> Header | None:
        """The header of one of the files, None if they cannot be read."""
        return self.files[0].header

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(one.nbytes for one in self.files)

    @property
    def changed(self) -> float:
        """When it was last written, seconds since 1970."""
        return max(one.changed for one in self.files)

    @property
    def state(self) -> str:
        """How far it has come: the furthest state of a file, for all had reached it."""
        if self.header is None:
            return UNREADABLE
        states = [one.header.state for one in self.files if one.header is not None]
        return max(states, key=STATES.index)

    @cached_property
    def objection(self) -> Objection | None:
        """Why it cannot be restored from these files, None if it can."""
        if self.save is None:
            told = self.files[0].problem or "it was being written"
            return Objection(told, (), 0)
        return self.save.objection()

    @property
    def verdict(self) -> str:
        """Whether it can be restored from these files, for a reader."""
        if self.objection is not None:
            return self.objection.text
        lost = len(self.save.lost) if self.save else 0
        return f"restorable, {lost} lost" if lost else "whole"

    def row(self, now: float, *, owner: str) -> dict[str, Any]:
        """Describe it as plain JSON.

        Local.

        Parameters
        ----------
        now : float
            Seconds since 1970.
        owner : str
            The process that has it open; empty if none has.

        Returns
        -------
        dict of str to object
            Flat.
        """
        header = self.header
        found: dict[str, Any] = {"name": self.name, "run": header.run if header else None}
        for key in ("step", "generation", "epoch"):
            found[key] = getattr(header, key) if header else None
        found |= {"state": self.state, "ranks": header.world if header else None}
        found |= {"groups": header.groups if header else None}
        layouts = self.save.layouts.values() if self.save else ()
        found |= {
            "groups_seen": len(layouts),
            "shares": sum(len(layout.shares) for layout in layouts),
            "shares_present": len(self.save.found) if self.save else 0,
            "files": len(self.files),
            "bytes": self.nbytes,
            "age_s": max(0.0, round(now - self.changed, 1)),
            "locked": bool(owner),
            "owner": owner,
            "restorable": self.objection is None,
            "verdict": self.verdict,
        }
        return found


def holdings(kept: Iterable[SlotNamedFile]) -> list[Holding]:
    """Sort files into saves.

    Local.

    Parameters
    ----------
    kept : iterable of SlotNamedFile
        The files that were found.

    Returns
    -------
    list of Holding
        By name, the newest save first, unreadable files last.
    """
    lots: dict[tuple[Any, ...], list[SlotNamedFile]] = {}
    for one in kept:
        of = one.header
        age = (1, 0, 0, "") if of is None else (0, -of.epoch, -of.generation, of.run)
        lots.setdefault((one.name, *age), []).append(one)
    return [_holding(lot) for _, lot in sorted(lots.items())]


def _holding(lot: Sequence[SlotNamedFile]) -> Holding:
    """Put the files of one save together."""
    found = [Found(one.node, str(one.path), one.header) for one in lot if one.header is not None]
    of_run = saves(found)
    return Holding(lot[0].name, tuple(lot), of_run[0] if of_run else None)


def _kept(node: int, path: Path, name: str) -> SlotNamedFile:
    """Look at one file."""
    told = path.lstat()
    header, problem = None, ""
    try:
        header = slot_file.look(path)
        if name_of(header, place_of(path)) != path.name:
            header, problem = None, "another slot than its name says"
    except CheckpointError as error:
        problem = error.problem.removeprefix(f"{path}: ")
    except Unavailable as error:
        problem = error.what.removeprefix(f"node memory {path}: ")
    return SlotNamedFile(node, path, name, told.st_size, told.st_mtime, header, problem)


def _check_place(place: Path) -> None:
    """Refuse a folder that others may have a hand in."""
    try:
        found = place.lstat()
    except OSError as error:
        raise UsageError("checkpoint", f"{place}: {error.strerror}", "give a folder") from error
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError("checkpoint", f"{place} is no folder", "give one, and no link to one")
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        problem = f"{place} is not this user's, or others may write into it"
        remedy = "copy the slots into a folder of your own, or chmod go-w it"
        raise UsageError("checkpoint", problem, remedy)


#: Start of the names of folders to work in.
_SCRATCH: Final = ".closeranks-repair-"
#: How old they are when nobody works there any more, seconds.
_FORGOTTEN_S: Final = 86400.0


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Have a folder to work in, of which nothing stays.

    Local.  If the process is killed it stays, until the first use a day later.

    Parameters
    ----------
    place : Path
        Where it is made.

    Yields
    ------
    Path
        Of this user alone.
    """
    try:
        for old in place.glob(f"{_SCRATCH}*"):
            is_own = is_own_folder(old, _SCRATCH)
            if is_own and old.lstat().st_mtime < time.time() - _FORGOTTEN_S:
                shutil.rmtree(old, ignore_errors=True)
        work = Path(mkdtemp(prefix=_SCRATCH, dir=place))
    except OSError as error:
        raise Unavailable(
            f"{place}: {error.strerror}", "make it writable, or take another"
        ) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a slot into a new file that has room for it.

    Local.

    Parameters
    ----------
    source : Path
        Of a file of this user's.
    target : Path
        Where nothing is.

    Raises
    ------
    Unavailable
        If there is no room.
    """
    with SharedFile.reading(source) as handle:
        nbytes = os.fstat(handle.fileno()).st_size
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(target, flags, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as made:
                os.posix_fallocate(descriptor, 0, nbytes)
                shutil.copyfileobj(handle, made, 1 << 20)
        except OSError as error:
            problem = f"{target}: {nbytes} bytes wanted, {error.strerror}"
            raise Unavailable(problem, "make room there, or name another folder") from error


def carry(source: Path, target: Path) -> None:
    """Put a slot in its place at once, and on the disk where there is one.

    Local.

    Parameters
    ----------
    source : Path
        Where it is; not any more, then.
    target : Path
        A file of this name is replaced.

    Raises
    ------
    Unavailable
        If that is not possible; the file that was there stays.
    """
    arrival = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            source.rename(arrival)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            copy(source, arrival)
        with SharedFile.reading(arrival) as handle:
            os.fsync(handle.fileno())
        arrival.rename(target)
    except OSError as error:
        raise Unavailable(f"{target}: {error.strerror}", "look what is in the way") from error
    finally:
        with suppress(FileNotFoundError):
            arrival.unlink()


#: What a slot starts with; or it is new, or its header is being written.
_STARTS: Final = (b"clsrslot", bytes(8))


def remove(holding: Holding, places: Sequence[Path]) -> str:
    """Remove the slots of a save.

    Local.  No process can open them meanwhile.  A file that has become another
    save since it was looked at stays, and so does a file that is no slot.

    Parameters
    ----------
    holding : Holding
        The slots to remove.
    places : sequence of Path
        The folders that it is in.

    Returns
    -------
    str
        Why something was kept; empty if nothing was.
    """
    with ExitStack() as stack:
        for place in places:
            if not stack.enter_context(slot_locks.removing(place, holding.name)):
                return "open in a process"
        problems = [_remove(one) for one in holding.files]
    return "; ".join(dict.fromkeys(filter(None, problems)))


def _remove(one: SlotNamedFile) -> str:
    """Remove a slot; gives why it was kept."""
    try:
        if one.header is None:
            with SharedFile.reading(one.path) as handle:
                start = handle.read(8)
            if start and not any(own.startswith(start) for own in _STARTS):
                return f"{one.path.name} is no slot"
        else:
            now = slot_file.look(one.path)
            if (now.run, now.age) != (one.header.run, one.header.age):
                return "overwritten meanwhile"
        one.path.unlink()
    except CheckpointError as error:
        return error.problem
    except Unavailable as error:
        return error.what
    except OSError as error:
        return f"{one.path}: {error.strerror}"
    return ""
