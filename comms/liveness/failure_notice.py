"""The notice of a rank that gives up: rank, reason, exit status."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final, NamedTuple

from closeranks.comms.exit.exit_report import exit_status

#: The status of a process that was interrupted from the keyboard, as shells give it.
INTERRUPTED: Final = 130
#: Most characters of an error's text in a notice.
_MOST: Final = 300


class Notice(NamedTuple):
    """A rank has given up its family of communicators.

    Attributes
    ----------
    rank : int
        In the communicator that `closeranks.init` made.
    act : str
        Its act in words: "left by ValueError: mine".
    status : int
        The exit status of the job if it ends by this.
    """

    rank: int
    act: str
    status: int

    def __str__(self) -> str:
        return f"rank {self.rank} {self.act}"


def notice_of(rank: int, error: BaseException | None) -> Notice:
    """Make the notice of a rank that leaves.

    Parameters
    ----------
    rank : int
        The rank.
    error : BaseException or None
        Its error; None if it gives up without one.

    Returns
    -------
    Notice
        For the other ranks.
    """
    if error is None:
        return Notice(rank, "has given it up by abandon()", 1)
    return Notice(rank, f"left by {in_words(error)}", status_of(error))


def status_of(error: BaseException) -> int:
    """Give the exit status of a process that ends by an error."""
    if isinstance(error, SystemExit):
        return exit_status(error.code)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def in_words(error: BaseException) -> str:
    """Give class and text of an error in one short line."""
    text = ""
    with suppress(Exception):  # its own __str__ may fail
        text = " ".join(str(error).split())
    text = text if len(text) <= _MOST else f"{text[:_MOST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def encoded(kind: str, *words: object) -> bytes:
    """Encode a message between ranks."""
    return json.dumps([kind, *words]).encode()


def decoded(data: bytes) -> list[object]:
    """Decode a message; an empty list if it is malformed."""
    try:
        words = json.loads(data)
    except ValueError:
        return []
    return words if isinstance(words, list) else []
