"""Carrying slots to other folders: at once, and never over what nobody gave up."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from closeranks.comms.shm.file_names import is_own_folder
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.errors import Unavailable

#: Start of the names of folders to work in.
_SCRATCH: Final = ".closeranks-repair-"
#: How old they are when nobody works there any more, seconds.
_FORGOTTEN_S: Final = 86400.0


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Have a folder to work in, of which nothing stays.

    Local.  If the process is killed it does, until a day later somebody works
    here.

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
        What has this name is replaced.

    Raises
    ------
    Unavailable
        If that is not possible; what was there stays.
    """
    near = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            source.rename(near)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            copy(source, near)
        with SharedFile.reading(near) as handle:
            os.fsync(handle.fileno())
        near.rename(target)
    except OSError as error:
        raise Unavailable(f"{target}: {error.strerror}", "look what is in the way") from error
    finally:
        with suppress(FileNotFoundError):
            near.unlink()
