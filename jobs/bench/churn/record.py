"""What a process writes down after every step, for its death to leave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Record(NamedTuple):
    """A step that has ended well, as one process saw it.

    Attributes
    ----------
    process : str
        Which process; no two of an episode are called alike.
    step, epoch, seat : int
        When, and who.
    alive : tuple of int
        Seats of the members.
    waiting : int
        How many spares are left.
    total, marks : int
        What the parts of all of them added up to, see `parts.Sums`.
    rss_kib, files : int
        Memory and open files of the process.
    seconds : float
        How long the step took.
    """

    process: str
    step: int
    epoch: int
    seat: int
    alive: tuple[int, ...]
    waiting: int
    total: int
    marks: int
    rss_kib: int
    files: int
    seconds: float


def line(record: Record) -> str:
    """Write a record.

    Parameters
    ----------
    record : Record
        Of a step.

    Returns
    -------
    str
        A line of JSON.
    """
    return json.dumps(record) + "\n"


def read(folder: Path) -> list[Record]:
    """Read what all processes of an episode have written.

    Local.  A line that a death has cut short never was.

    Parameters
    ----------
    folder : Path
        Holds a file for each.

    Returns
    -------
    list of Record
        In any order.
    """
    logs = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.log"))]
    lines = [text for log in logs for text in log.splitlines(keepends=True)]
    return [_parsed(json.loads(text)) for text in lines if text.endswith("\n")]


def _parsed(words: list[Any]) -> Record:
    record = Record(*words)
    return record._replace(alive=tuple(record.alive))
