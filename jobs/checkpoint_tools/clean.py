"""Which checkpoints are removed, and why others are not."""

from __future__ import annotations

import re
import time
from functools import cache
from typing import Any, Final

from closeranks.checkpoint.memory import slot_locks
from closeranks.checkpoint.restore import slot_removal
from closeranks.errors import UsageError
from closeranks.jobs.checkpoint_tools import slurm_queue
from closeranks.jobs.checkpoint_tools.name_choice import Sight, job_of

Row = dict[str, Any]
_AGE: Final = re.compile(r"(\d{1,6})\s*(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_age(text: str) -> float:
    """Read an age.

    Parameters
    ----------
    text : str
        Such as ``2d``, ``12h``, ``30min`` or ``90s``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        problem = f"--older-than {text}"
        raise UsageError("checkpoint clean", problem, "write 2d, 12h, 30min or 90s")
    return float(int(found[1]) * _SECONDS[found[2]])


def clean(sight: Sight, older_s: float, *, removes: bool) -> list[Row]:
    """Say what would be removed, or remove it; local.

    Parameters
    ----------
    sight : Sight
        What is meant.
    older_s : float
        What is younger stays, seconds.
    removes : bool
        Whether to remove it.

    Returns
    -------
    list of dict
        As of `Holding.row`, and ``kept`` and ``fate``.
    """
    now, ask = time.time(), cache(slurm_queue.state)
    rows = []
    for one in sight.found:
        owner = slot_locks.owners(sight.places, one.name)
        row = one.row(now, owner=owner)
        if row["age_s"] < older_s:
            continue
        job = job_of(one.name)
        reason = f"open: {owner}" if owner else ask(job) if job else ""
        if not reason and removes:
            reason = slot_removal.remove(one, sight.places)
        done = "removed" if removes else "can be removed"
        fate = f"kept: {reason}" if reason else done
        rows.append({**row, "kept": bool(reason), "fate": fate})
    for place in sight.places if removes else ():
        slot_locks.tidy(place)
    return rows
