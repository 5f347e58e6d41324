"""Locks: which job has the checkpoints on a node, as long as it lives.

A file beside the slots of each name.  Every process of the job that has them
open holds a shared lock on it.  A process that takes them for a job, or
removes slots, holds an exclusive lock for a moment.  In it stands which job
that is, for others.  Locks of POSIX: they go with the process, however it
ends, and a child that it has forked does not hold them.  But they go too when
the process closes any descriptor of the file: it opens each once.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from closeranks.checkpoint.placement.slot_header import KEY
from closeranks.comms.shm.shared_folder import ROOT, folder
from closeranks.errors import Unavailable

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: Start of the names of the files.
_PREFIX: Final = "lock-"
#: Bytes of what stands in one: written over in place, for node memory may be full.
_RECORD: Final = 512


@dataclass(frozen=True)
class Owner:
    """A job that has checkpoints open, and one of its processes.

    Attributes
    ----------
    token : str
        The token that tells it from all others.
    host : str
        Name of the node.
    pid : int
        Of the process.
    start : float
        When that began, seconds since 1970.
    step : str
        Of SLURM, with the job; empty where there is none.
    """

    token: str
    host: str
    pid: int
    start: float
    step: str

    @classmethod
    def here(cls, token: str) -> Owner:
        """Speak of this process.  Local."""
        parts = (os.environ.get(f"SLURM_{part}", "") for part in ("JOB_ID", "STEP_ID"))
        step = ".".join(filter(None, parts))
        return cls(token, socket.gethostname(), os.getpid(), psutil.Process().create_time(), step)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.start))
        step = f", SLURM step {self.step}" if self.step else ""
        return f"host {self.host}, pid {self.pid}, started {since}{step}"


#: Path -> process, descriptor, token of the job.
_HELD: Final[dict[Path, tuple[int, int, str]]] = {}


def take(name: str, owner: Owner, root: Path | None = None) -> str:
    """Take the slots of a name for a job, or join its processes that have them.

    Local, never waits; harmless twice.

    Parameters
    ----------
    name : str
        Of the checkpoints, with the job.
    owner : Owner
        The job, and this process.
    root : Path, optional
        The file system in memory; /dev/shm.

    Returns
    -------
    str
        The other owner; empty if this job has them now.

    Raises
    ------
    Unavailable
        If the file is none of ours, or there is no room for it.
    """
    path = _path(folder(root or ROOT), name)
    if _is_mine(path):
        return "" if _HELD[path][2] == owner.token else str(owner)
    descriptor = _locked(path, fcntl.LOCK_EX)
    if descriptor is not None:
        _write(path, descriptor, owner)
        fcntl.lockf(descriptor, fcntl.LOCK_SH)  # at once: nobody comes between
    else:
        descriptor = _locked(path, fcntl.LOCK_SH)
        if descriptor is None:
            return "a process that takes or removes them"
        found = _read(descriptor)
        if found is None or found.token != owner.token:
            os.close(descriptor)
            return str(found or "a process that has not said who it is")
    _HELD[path] = os.getpid(), descriptor, owner.token
    return ""


def holds(name: str, root: Path | None = None) -> bool:
    """Tell whether this process has checkpoints of a name open.

    Local.

    Parameters
    ----------
    name : str
        Of the checkpoints, with the job.
    root : Path, optional
        The file system in memory; /dev/shm.
    """
    return _is_mine(_path((root or ROOT) / f"closeranks-{os.getuid()}", name))


def release(name: str, root: Path | None = None) -> None:
    """Let others remove slots of a name; harmless twice.

    Local.  The last process removes the file.

    Parameters
    ----------
    name : str
        Of the checkpoints, with the job.
    root : Path, optional
        The file system in memory; /dev/shm.
    """
    path = _path((root or ROOT) / f"closeranks-{os.getuid()}", name)
    if not _is_mine(path):
        return
    _, descriptor, _ = _HELD.pop(path)
    with suppress(OSError):  # others hold it
        # Unlocked first: of two that go at once the later one sees that nobody is left.
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _unlink(path, descriptor)
    os.close(descriptor)


def is_held(place: Path, name: str) -> bool:
    """Tell whether a process has checkpoints of a name open.

    Local.

    Parameters
    ----------
    place : Path
        The folder that their slots are in.
    name : str
        Of the checkpoints, with the job.
    """
    path = _path(place, name)
    if _is_mine(path):
        return True
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whatever it is, nobody knows that they are free
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def owner(place: Path, name: str) -> str:
    """Tell which job has checkpoints of a name open.

    Local.

    Parameters
    ----------
    place : Path
        The folder that their slots are in.
    name : str
        Of the checkpoints, with the job.

    Returns
    -------
    str
        Host, process and start; empty if none has.
    """
    if not is_held(place, name):
        return ""
    path = _path(place, name)
    if _is_mine(path):
        return str(_read(_HELD[path][1]))
    found = None
    with suppress(OSError):
        descriptor = os.open(path, _FLAGS)
        found = _read(descriptor)
        os.close(descriptor)
    return str(found or "a process that has not said who it is")


def owners(places: Iterable[Path], name: str) -> str:
    """Tell which job has checkpoints of a name open in any of some folders.  Local."""
    return next(filter(None, (owner(place, name) for place in places)), "")


@contextmanager
def removing(place: Path, name: str) -> Iterator[bool]:
    """Keep others from opening checkpoints of a name while their slots are removed.

    Local.

    Parameters
    ----------
    place : Path
        The folder that their slots are in.
    name : str
        Of the checkpoints, with the job.

    Yields
    ------
    bool
        False if a process has them open: then nothing may be removed.
    """
    path = _path(place, name)
    descriptor = None if _is_mine(path) else _locked(path, fcntl.LOCK_EX)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _unlink(path, descriptor)
            os.close(descriptor)


def tidy(place: Path) -> None:
    """Remove the files of locks that no process holds: theirs were killed.

    Local.

    Parameters
    ----------
    place : Path
        A folder of slots.
    """
    for path in place.glob(f"{_PREFIX}*"):  # of which some may be the user's own
        name = path.name.removeprefix(_PREFIX)
        if not path.is_symlink() and KEY.fullmatch(name) and not is_held(place, name):
            with removing(place, name):
                pass  # which takes the file along


def _path(place: Path, name: str) -> Path:
    """Name the file: unlike any slot."""
    return place / f"{_PREFIX}{name}"


def _is_mine(path: Path) -> bool:
    """Tell whether this process holds a lock, and none that it was forked from."""
    return path in _HELD and _HELD[path][0] == os.getpid()


def _locked(path: Path, kind: int) -> int | None:
    """Open a file and lock it; None if others do not let us, or have just removed it."""
    try:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(
            f"{path}: {error.strerror}", "look who made it, then remove it"
        ) from error
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        raise Unavailable(f"{path}: no locks here, {error.strerror}", "take /dev/shm") from error
    os.close(descriptor)
    return None


def _unlink(path: Path, descriptor: int) -> None:
    """Remove the file that a descriptor is of, if it is a lock, and no other one."""
    with suppress(FileNotFoundError):
        is_lock = os.fstat(descriptor).st_size == 0 or _read(descriptor) is not None
        if is_lock and os.path.samestat(os.fstat(descriptor), path.lstat()):
            path.unlink()


def _write(path: Path, descriptor: int, owner: Owner) -> None:
    """Write the owner into a file, over the one before; the caller has it alone."""
    text = json.dumps(asdict(owner)).encode()
    try:
        os.pwrite(descriptor, text.ljust(_RECORD)[:_RECORD], 0)
    except OSError as error:
        os.close(descriptor)
        raise Unavailable(f"{path}: {error.strerror}", "make room there") from error


def _read(descriptor: int) -> Owner | None:
    """Read the owner of a file, or the last one; None if it is not known."""
    try:
        return Owner(**json.loads(os.pread(descriptor, _RECORD, 0)))
    except (OSError, ValueError, TypeError):
        return None
