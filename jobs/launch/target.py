"""The files that a verb is asked to write: found wanting before it starts."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from closeranks.errors import Error, UsageError


def check(verb: str, *paths: Path | None) -> None:
    """Refuse files that cannot be written, before anything is done; local.

    Parameters
    ----------
    verb : str
        The verb that will write.
    *paths : Path or None
        Where to; None is left out.

    Raises
    ------
    UsageError
        If there is no folder for one, or this user may not write it.
    """
    for path in filter(None, paths):
        try:
            if not path.parent.is_dir():
                raise UsageError(verb, f"no folder for {path}", "make it, or choose another")
            if path.is_dir():
                raise UsageError(verb, f"{path} is a folder", "name a file in it")
            able = os.access(path if path.exists() else path.parent, os.W_OK)
        except PermissionError:  # nor may this user look there
            able = False
        if not able:
            raise UsageError(verb, f"{path} cannot be written", "name another file")


def write(verb: str, path: Path, text: str) -> None:
    """Write a file; local.

    Parameters
    ----------
    verb : str
        The verb that writes.
    path : Path
        Where to.
    text : str
        What.

    Raises
    ------
    Error
        If the system refuses, such as for want of space.
    """
    with writing(verb, path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def writing(verb: str, path: Path) -> Iterator[None]:
    """Say which file the system refuses to write; local.

    Parameters
    ----------
    verb : str
        The verb that writes.
    path : Path
        Where to.

    Yields
    ------
    None
        While it is written.

    Raises
    ------
    Error
        If the system refuses, such as for want of space.
    """
    try:
        yield
    except OSError as wrong:
        raise Error(verb, f"cannot write {path}: {wrong.strerror}", "name another file") from wrong


@contextmanager
def printing(verb: str) -> Iterator[None]:
    """Say that the system refuses what a verb prints; local.

    Parameters
    ----------
    verb : str
        The verb that prints.

    Yields
    ------
    None
        While it prints.

    Raises
    ------
    Error
        If the system refuses, such as for want of space.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as wrong:
        if wrong.errno == errno.EPIPE:  # nobody reads it any more: Click ends quietly
            raise
        # What is left in the buffer would be tried again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        problem = f"cannot write to standard output: {wrong.strerror}"
        raise Error(verb, problem, "send it somewhere else") from wrong
