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

#: What `tempfile.mkdtemp` puts behind its prefix.
_DRAWN: Final = r"[a-z0-9_]{8}"


def is_own_folder(path: Path, prefix: str) -> bool:
    """Tell whether a folder is one that this user has had made by `tempfile.mkdtemp`.

    Local.

    Parameters
    ----------
    path : Path
        What is there.
    prefix : str
        Of its name.
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
    """Raised when others may have a hand in what should be this user's alone.

    Whoever meets it does so for reasons of his own, not for want of other ranks.
    """


def folder(root: Path = ROOT) -> Path:
    """Return this user's folder in node memory, made if need be, checked always.

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
        If it is not this user's alone, or no folder: nothing is done in it.
    """
    path = root / f"closeranks-{os.getuid()}"
    try:
        with suppress(FileExistsError):  # whatever it is
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
            # in a folder that all may write into only its owner can
            else "ask that user or an administrator to remove it",
        )  # fmt: skip
    return path


def _named(user: int) -> str:
    """Name a user, who may have no name."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return f"user {user}"
