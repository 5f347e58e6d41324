"""Sums of a step, and the records of them that outlive a process.

A summand of a member has its bits, and a mark that no other step has.  Bits
alone are the same in every step, and 3 * 1 == 1 + 2.  A sum of the step before
may look right then, and so may a sum in which one part is missing and another
counts three times.

A process writes a `Record` after every step.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]

#: Words of an all-reduce, in turn; every other one is a mark.
LENGTHS: Final = (2, 300, 20_000, 1000)
#: What a buffer holds before an all-reduce: no sum of bits.
UNWRITTEN: Final = -1
#: Bits of a mark that are left out: 63 marks, more never are, add up to a word with a sign.
_SPARED: Final = 7


class Sums(NamedTuple):
    """Sums of the parts of a step.

    Attributes
    ----------
    bits, marks : int
        Both are -1 where the elements of a buffer differ.
    """

    bits: int
    marks: int


def part(seat: int, step: int, epoch: int) -> Words:
    """Make what a member adds in a step.

    Parameters
    ----------
    seat, step, epoch : int
        The member's seat, the step and its epoch.

    Returns
    -------
    ndarray of int64
        Bits and marks, in turn.
    """
    words = np.empty(LENGTHS[step % len(LENGTHS)], np.int64)
    words[::2], words[1::2] = 1 << seat, _mark(seat, step, epoch)
    return words


@lru_cache(1 << 14)
def whole(alive: tuple[int, ...], step: int, epoch: int) -> Sums:
    """Add up the parts of all members.

    Pure.

    Parameters
    ----------
    alive : tuple of int
        Their seats.
    step, epoch : int
        When.

    Returns
    -------
    Sums
        The sums that each of them must get.
    """
    return Sums(sum(1 << seat for seat in alive), sum(_mark(seat, step, epoch) for seat in alive))


def read_sums(words: Words) -> Sums:
    """Read what an all-reduce has brought.

    Parameters
    ----------
    words : ndarray of int64
        As long as a `part`.

    Returns
    -------
    Sums
        Of its elements, if they are alike.
    """
    bits, marks = words[::2], words[1::2]
    is_one = (bits == bits[0]).all() and (marks == marks[0]).all()
    return Sums(int(bits[0]), int(marks[0])) if is_one else Sums(-1, -1)


def _mark(seat: int, step: int, epoch: int) -> int:
    digest = hashlib.blake2b(b"%d %d %d" % (seat, step, epoch), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> _SPARED


class Record(NamedTuple):
    """A step that has ended well, as one process saw it.

    Attributes
    ----------
    process : str
        Which process; no two of an episode are called alike.
    step, epoch, seat : int
        Step, epoch and seat.
    alive : tuple of int
        Seats of the members.
    waiting : int
        How many spares are left.
    total, marks : int
        Sums of the parts of all of them.
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
