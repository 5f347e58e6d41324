"""A process that ends a new one whose starter dies before it has joined.

What MPI_Spawn has started looks for its starter in MPI_Init, before any code
of ours runs, and Open MPI lets it look for ten minutes, although the starter
is dead and others have begun anew.  The job would end ten minutes late.

This file is also the program, and needs nothing but Python; see `command`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence

#: Added to this variable, after a colon: what the new process closes when it has joined.
_VARIABLE = "CLOSERANKS_JOINS"


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
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


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
    if pipe:
        os.close(int(pipe))
    return int(said)


def _become(starter: int, words: list[str]) -> None:
    """Be watched, and run the command."""
    watched = os.pidfd_open(os.getpid())
    try:
        starts = os.pidfd_open(starter)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)  # a death, which the launcher lets pass
        return
    ends, joins = os.pipe()
    os.set_inheritable(joins, True)
    os.environ[_VARIABLE] += f":{joins}"
    between = os.fork()
    if not between:  # forks and ends: what watches is no child of the new process
        if not os.fork():
            _watch(watched, starts, ends)
        os._exit(0)
    os.waitpid(between, 0)
    os.execvp(words[0], words)


def _watch(watched: int, starts: int, ends: int) -> None:
    """Wait for the end of the starter, or for the new process to need it no more."""
    os.setpgid(0, 0)  # what a terminal sends to the ranks spares it
    os.dup2(watched, 0)
    os.dup2(starts, 1)
    os.dup2(ends, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the launcher reads pipes to their ends
    first = select.poll()
    first.register(1, select.POLLIN)
    first.register(2, select.POLLHUP)
    if 2 not in dict(first.poll()):
        signal.pidfd_send_signal(0, signal.SIGKILL)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
