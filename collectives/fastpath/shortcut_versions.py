"""Interpreters and NumPys whose objects compiled shortcuts may read.

Shortcuts read lists, tuples and arrays where CPython and NumPy keep them,
which no interface promises.  So they are off in versions that are not listed
here; calls take the way through Python then.  A test of the proof of shortcuts
says what to add.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

#: Minor versions of CPython and of NumPy, whose objects the proof has been read from.
PROVEN: Final = frozenset(
    {
        ("3.11", "2.4"),
        ("3.12", "2.0"),
        ("3.12", "2.1"),
        ("3.12", "2.2"),
        ("3.12", "2.3"),
        ("3.12", "2.4"),
        ("3.13", "2.4"),
    }
)


def versions() -> tuple[str, str]:
    """Give the minor versions of this interpreter and of NumPy.  Local."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return python, ".".join(np.__version__.split(".")[:2])


def are_listed() -> bool:
    """Tell whether shortcuts were proven in these versions.  Local."""
    return sys.implementation.name == "cpython" and versions() in PROVEN
