"""Names that this package draws for files, and whether something has one of them.

Who tidies up in a folder of somebody else's takes away what has a full name of
ours, and nothing that only begins or ends like one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

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
