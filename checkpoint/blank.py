"""Slots that nothing was ever in: their makers were killed before the headers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from closeranks.comms.shared_file import SharedFile
from closeranks.errors import Unavailable

#: Bytes at the front where a slot has its headers, its sums and some of its data.
_FRONT: Final = 1 << 20


def is_blank(path: Path) -> bool:
    """Tell whether a slot still is as it was made: without a header, all zeros.

    Local.  A header that was whole once leaves something there, even if it is
    damaged: such a slot is lost, and no blank one.

    Parameters
    ----------
    path : Path
        Its name.

    Returns
    -------
    bool
        False if it cannot be read.
    """
    with suppress(Unavailable, OSError), SharedFile.reading(path) as handle:
        front = os.pread(handle.fileno(), _FRONT, 0)
        return front.count(0) == len(front)
    return False
