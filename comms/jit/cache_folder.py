"""Where compiled code is kept: a folder that nobody else may write.

A container may be read-only, and a user without a home: then it is a folder in
the system's place for temporary files.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir

from closeranks.comms.settings import PREFIX, setting
from closeranks.comms.shm import shared_folder
from closeranks.errors import Unavailable, UsageError


@cache
def folder() -> Path | None:
    """Give the folder for compiled code, made if need be.

    Local.

    Returns
    -------
    Path or None
        That of ``CLOSERANKS_CODE``, else ``closeranks`` in the user's caches, else
        one in the folder for temporary files; None where none can be trusted:
        who may write there could run what he likes.

    Raises
    ------
    UsageError
        If ``CLOSERANKS_CODE`` cannot be trusted.
    """
    named = setting("CODE")
    if named:
        if _is_safe(Path(named)):
            return Path(named)
        raise UsageError(f"{PREFIX}CODE", f"{named}: no folder, or one that others may write",
                         "chmod go-w it, name another one, or none")  # fmt: skip
    with suppress(RuntimeError):  # a user without a home
        place = _caches() / "closeranks"
        if _is_safe(place):
            return place
    try:
        return shared_folder.folder(Path(gettempdir()))
    except Unavailable:
        return None


def _caches() -> Path:
    """Name the user's folder for what can be made again."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()


def _is_safe(place: Path) -> bool:
    """Whether a folder is there, made if need be, that no other user may change."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.stat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid in (0, os.getuid())
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and os.access(place, os.R_OK | os.X_OK)
    )
