"""A process that ends a new rank whose parent dies before it has joined.

A process that MPI_Spawn has started looks for its parent in MPI_Init, before
any code of this package runs.  If the parent has died and the survivors have
begun anew, Open MPI lets the new process search for ten minutes.  The job
would end ten minutes late.

This file is also the program, and needs nothing but Python; see `command`.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress

#: To this variable is added, after a colon: where the new process says that it has joined.
VARIABLE = "CLOSERANKS_JOINS"


def command(words: Sequence[str]) -> list[str]:
    """Write the command line of a process that this one starts.

    Local.

    Parameters
    ----------
    words : sequence of str
        What it is to run, in an environment with ``CLOSERANKS_JOINS``.

    Returns
    -------
    list of str
        What makes sure of its end, and then becomes it.
    """
    return [sys.executable, "-I", "-S", __file__, f"{os.getpid()}@{_numbering()}", *words]


def joined(ticket: str) -> int:
    """Need no watch any more.

    Local to the new process.

    Parameters
    ----------
    ticket : str
        Its ``CLOSERANKS_JOINS``.

    Returns
    -------
    int
        What the starter has written there.
    """
    said, _, pipe = ticket.partition(":")
    with suppress(OSError):  # somebody has closed it
        if pipe and stat.S_ISFIFO(os.fstat(int(pipe)).st_mode):
            os.write(int(pipe), b"j")  # not its end: who was forked may have it too
            os.close(int(pipe))
    return int(said)


def _numbering() -> str:
    """Name where process numbers mean what they mean here."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - imports cost time


def _become(starter: str, words: list[str]) -> None:
    """Be watched if the system can (Linux 5.3), and run the command."""
    with suppress(OSError, AttributeError):
        number, _, numbering = starter.partition("@")
        if numbering == _numbering():
            _be_watched(int(number))
    _read_nothing()
    os.execvp(words[0], words)


def _read_nothing() -> None:
    """Let the program find its input at its end, as all ranks but the first do.

    What the launcher gives to who was started later is a pipe that it never
    closes, and who reads that before it joins keeps the members waiting.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing:  # 0 if there was no input at all
        os.dup2(nothing, 0)
        os.close(nothing)
    os.set_inheritable(0, True)


def _be_watched(starter: int) -> None:
    """Let a process wait for the end of the starter, no child of this one."""
    watched = os.pidfd_open(os.getpid())
    try:
        starts = os.pidfd_open(starter)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)  # a death, which the launcher lets pass
        return
    ends, joins = os.pipe()
    between = os.fork()
    if not between:
        if not os.fork():
            _watch(watched, starts, ends)
        os._exit(0)
    os.waitpid(between, 0)
    os.set_inheritable(joins, True)
    os.environ[VARIABLE] += f":{joins}"


def _watch(watched: int, starts: int, ends: int) -> None:
    """Wait for the end of the starter, or for the new process to need it no more."""
    os.setpgid(0, 0)  # what a terminal sends to the ranks spares it
    os.dup2(watched, 0)
    os.dup2(starts, 1)
    os.dup2(ends, 2)
    # The launcher reads pipes to their ends.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - imports cost time
        with suppress(OSError):
            if int(name) > 2:
                os.close(int(name))
    first = select.poll()
    first.register(1, select.POLLIN)
    first.register(2, select.POLLIN)  # its end too
    if 2 not in dict(first.poll()):
        signal.pidfd_send_signal(0, signal.SIGKILL)


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2:])
