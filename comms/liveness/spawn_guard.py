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

#: Its value gets a pipe after a colon: there the new process reports that it has joined.
VARIABLE = "CLOSERANKS_JOINS"


def command(words: Sequence[str]) -> list[str]:
    """Write the command line of a process that this one starts.

    Local.

    Parameters
    ----------
    words : sequence of str
        The program, run in an environment with ``CLOSERANKS_JOINS``.

    Returns
    -------
    list of str
        This file, which starts a guard and then becomes the program.
    """
    return [sys.executable, "-I", "-S", __file__, f"{os.getpid()}@{_numbering()}", *words]


def joined(ticket: str) -> int:
    """Tell the guard that this process has joined.

    Local to the new process.

    Parameters
    ----------
    ticket : str
        Its ``CLOSERANKS_JOINS``.

    Returns
    -------
    int
        The number that the parent has written there.
    """
    said, _, pipe = ticket.partition(":")
    with suppress(OSError):  # the program has closed it
        if pipe and stat.S_ISFIFO(os.fstat(int(pipe)).st_mode):
            os.write(int(pipe), b"j")  # closing is not enough: a forked child may hold it too
            os.close(int(pipe))
    return int(said)


def _numbering() -> str:
    """Name the PID namespace of this process."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - imports cost time


def _become(starter: str, words: list[str]) -> None:
    """Start a guard if the system can (Linux 5.3), and run the command."""
    with suppress(OSError, AttributeError):
        number, _, numbering = starter.partition("@")
        if numbering == _numbering():
            _be_watched(int(number))
    _read_nothing()
    os.execvp(words[0], words)


def _read_nothing() -> None:
    """Give the program an empty standard input, as all ranks but the first have.

    The launcher gives later processes a pipe that it never closes.  A process that
    reads it before it joins would keep the members waiting.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing:  # 0 if there was no input at all
        os.dup2(nothing, 0)
        os.close(nothing)
    os.set_inheritable(0, True)


def _be_watched(starter: int) -> None:
    """Start the guard, which is no child of this process."""
    watched = os.pidfd_open(os.getpid())
    try:
        starts = os.pidfd_open(starter)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)  # a death, which the launcher tolerates
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
    """Wait for the end of the parent, or until the new process has joined."""
    os.setpgid(0, 0)  # signals of a terminal to the ranks spare it
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
