"""What the files of slots are called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from closeranks.checkpoint.placement.slot_header import Header
from closeranks.errors import Unavailable

#: Name of the checkpoints, with that of the job.
KEY: Final = re.compile(r"[\w.-]{1,100}")
#: That, epoch, group, lane, member, place.
NAMED: Final = re.compile(rf"checkpoint-({KEY.pattern})-([0-9a-f]{{16}})-(\d+)-(\d+)-(\d+)\.(\d)")


def name_of(header: Header, place: int) -> str:
    """Give the name of a slot in its folder.

    Local.

    Parameters
    ----------
    header : Header
        What it holds.
    place : int
        Which of the share's slots it is.

    Returns
    -------
    str
        The last part of `closeranks.checkpoint.memory.slot_file.path_of`.
    """
    group, lane, member = header.share
    return f"checkpoint-{header.name}-{header.epoch:016x}-{group}-{lane}-{member}.{place}"


def place_of(path: Path) -> int:
    """Give which of the slots of a share one is, by its name.  Local."""
    parts = NAMED.fullmatch(path.name)
    if parts is None:
        raise Unavailable(f"a slot named {path.name}", "look what it is")
    return int(parts[6])
