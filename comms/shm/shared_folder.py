"""The folder in node memory that belongs to this user alone.

Files of this package are recognised by their full name.  A folder may hold
files of others, so a name that only begins or ends like ours is left alone.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from closeranks.errors import Unavailable

#: Characters that `tempfile.mkdtemp` puts behind its prefix.
_DRAWN: Final = r"[a-z0-9_]{8}"


def is_own_folder(path: Path, prefix: str) -> bool:
    """Tell whether this user made a folder by `tempfile.mkdtemp`.

    Local.

    Parameters
    ----------
    path : Path
        An existing path.
    prefix : str
        Start of its name.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    drawn = re.fullmatch(re.escape(prefix) + _DRAWN, path.name)
    return bool(drawn) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


#: Where node memory is a file system.
ROOT = Path("/dev/shm")


class Untrusted(Unavailable):
    """Raised when other users may change a folder that should be this user's alone.

    The cause is local to this rank: no other rank failed.
    """


def folder(root: Path = ROOT) -> Path:
    """Return this user's folder in node memory; makes and checks it.

    Local.

    Parameters
    ----------
    root : Path
        The file system in memory.

    Raises
    ------
    Unavailable
        If it cannot be made.
    Untrusted
        If other users may change it, or it is no folder; it is left alone.
    """
    path = root / f"closeranks-{os.getuid()}"
    try:
        with suppress(FileExistsError):  # of any kind
            path.mkdir(mode=0o700)
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable(
            f"node memory {path}: {error.strerror}", "make /dev/shm writable"
        ) from error
    mode = stat.S_IMODE(found.st_mode)
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder or found.st_uid != os.getuid() or mode & 0o077:
        kind = f"a folder (mode {mode:04o})" if is_folder else "no folder"
        is_own = found.st_uid == os.getuid()
        raise Untrusted(
            f"node memory {path}: {kind} of {_named(found.st_uid)}, not a folder of this user"
            " alone (0700, no link)",
            "remove it, others may have a hand in it" if is_own
            # in a folder that all may write to, only its owner can
            else "ask that user or an administrator to remove it",
        )  # fmt: skip
    return path


def _named(user: int) -> str:
    """Name a user; some have no name."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return f"user {user}"
