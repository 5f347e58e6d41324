"""The names ``closeranks bench`` understands."""

from __future__ import annotations

from collections.abc import Iterable

from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES

POINT_TO_POINT = ("pingpong", "bandwidth", "bibandwidth", "pairs", "matrix")
LOCAL = ("pack",)
#: What ``all`` stands for.
ALL = (*COLLECTIVES, *POINT_TO_POINT)
#: Measured when named: they look at one part of the package, and some take long where
#: ranks share cores.
APART = (
    "steps", *LOCAL, "overlap", "init", "faults", "churn", "erasure", "checkpoint", "snapshot",
)  # fmt: skip
NAMES = (*ALL, *APART)


def expand(names: Iterable[str]) -> list[str]:
    """Replace ``all`` and drop repetitions.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Names in `NAMES`, in the order they were first typed.

    Raises
    ------
    UsageError
        If there is none, or an unknown one.
    """
    chosen: dict[str, None] = {}
    for name in names:
        if name not in (*NAMES, "all"):
            raise UsageError("bench", f"unknown benchmark {name!r}", f"choose from: {_choices()}")
        chosen.update(dict.fromkeys(ALL if name == "all" else (name,)))
    if not chosen:
        raise UsageError("bench", "no benchmark named", f"choose from: {_choices()}")
    return list(chosen)


def collectives_among(names: Iterable[str]) -> list[str]:
    """Return the collectives that the names stand for.

    Parameters
    ----------
    names : iterable of str
        As typed.

    Returns
    -------
    list of str
        Those in `COLLECTIVES`.

    Raises
    ------
    UsageError
        As `expand`.
    """
    return [name for name in expand(names) if name in COLLECTIVES]


def _choices() -> str:
    """List all that can be typed."""
    return " ".join((*NAMES, "all"))
