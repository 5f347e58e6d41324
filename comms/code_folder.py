"""Where compiled code is kept, if Numba finds no place by itself.

A container may be read-only, and a user without a home.  Then the code lies in
a folder of this user alone, in the system's folder for temporary files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from closeranks.comms.shared_file import folder


@cache
def settle_code_folder() -> None:
    """Make sure that Numba can keep what it compiles.  Local; imports Numba.

    Called before a module that has code to be kept is imported.

    Raises
    ------
    Unavailable
        If there is no place to write at all.
    """
    import numba
    from numba.core.caching import FunctionCache

    config: Any = numba.config
    try:
        FunctionCache(_probe)  # type: ignore[no-untyped-call]
    except RuntimeError:  # neither beside the package nor in the user's home
        config.CACHE_DIR = str(folder(Path(gettempdir())) / "numba")


def _probe() -> None:
    """Stand for the functions of this package."""
