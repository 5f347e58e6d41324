"""The folder in node memory that is this user's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from closeranks.errors import Unavailable

#: Where node memory is a file system.
ROOT = Path("/dev/shm")


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
        If it cannot be made, or is not this user's alone.
    """
    path = root / f"closeranks-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable(
            f"node memory {path}: {error.strerror}", "make /dev/shm writable"
        ) from error
    private = stat.S_IMODE(found.st_mode) & 0o077 == 0
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or not private:
        raise Unavailable(
            f"node memory {path}: not a folder of this user alone (0700, no link)",
            "look who made it, then remove it",
        )
    return path
