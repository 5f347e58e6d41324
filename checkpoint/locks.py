"""Locks: who has checkpoints open on a node, as long as he lives.

A file beside the slots of each name, on which every process that has them
open holds a shared lock, and who removes slots an exclusive one for a moment.
Locks of POSIX: they go with the process, however it ends, and a child
that it has forked does not hold them.  But they go too when the process closes
any descriptor of the file: it opens each once.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from closeranks.comms.shared_folder import ROOT, folder
from closeranks.errors import Unavailable

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: Start of the names of the files.
_PREFIX: Final = "lock-"
#: How long somebody may remove slots before who opens them complains, seconds.
_PATIENCE_S: Final = 10.0
#: Path -> process, descriptor.
_HELD: Final[dict[Path, tuple[int, int]]] = {}


def hold(name: str, root: Path | None = None) -> None:
    """Keep others from removing slots of a name; harmless twice.

    Local.

    Parameters
    ----------
    name : str
        Of the checkpoints, with the job.
    root : Path, optional
        The file system in memory; /dev/shm.

    Raises
    ------
    Unavailable
        If somebody removes them all the while, or the file is none of ours.
    """
    path = _path(folder(root or ROOT), name)
    if _is_mine(path):
        return
    until = time.monotonic() + _PATIENCE_S
    while (descriptor := _locked(path, fcntl.LOCK_SH)) is None:
        if time.monotonic() > until:
            raise Unavailable(f"{path}: locked", "wait for closeranks checkpoint clean, or end it")
        time.sleep(0.01)
    _HELD[path] = os.getpid(), descriptor


def release(name: str, root: Path | None = None) -> None:
    """Let others remove slots of a name; harmless twice.

    Local.  Who is the last one removes the file.

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
    _, descriptor = _HELD.pop(path)
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
        False if somebody has them open: then nothing may be removed.
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
    """Remove the files of locks that nobody holds: their processes were killed.

    Local.

    Parameters
    ----------
    place : Path
        A folder of slots.
    """
    for path in place.glob(f"{_PREFIX}*"):
        name = path.name.removeprefix(_PREFIX)
        if not path.is_symlink() and not is_held(place, name):
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
    """Remove the file that a descriptor is of, and no other one."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            path.unlink()
