"""A process beside the ranks of a node that ends those which are stopped.

A rank that is stopped (SIGSTOP, a full terminal, an operator's hand) is not
dead: the library waits for it for ever, in a collective and in the recovery
from it.  So it is made dead; that is noticed.  Only the kernel's word counts
that it is stopped: a rank that computes, however long, is left alone, and so
is one that is traced by a debugger, or whose launcher is stopped as well,
which is how a user suspends a job.

This file is also the program, and needs nothing but Python; see `start`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: Looks in which a rank has to be stopped before it is ended.
LOOKS: Final = 5


class Ward:
    """One rank: how long it has been stopped.

    Parameters
    ----------
    looks : int
        In how many looks, one after the other, it has to be stopped.
    """

    def __init__(self, looks: int = LOOKS) -> None:
        self._looks, self._stopped = looks, 0

    def is_over(self, state: str, parent: str) -> bool:
        """Take what a look has shown; tell whether the rank is to be ended.

        Looks are counted, not seconds: who was stopped itself, and its ranks with
        it, does not hold that time against them.

        Parameters
        ----------
        state, parent : str
            State of its process and of its parent's, as in ``/proc/PID/stat``.

        Returns
        -------
        bool
            True once.
        """
        self._stopped = self._stopped + 1 if state == "T" and parent != "T" else 0
        return self._stopped == self._looks


def start(pids: Sequence[int], silence_s: float) -> int:
    """Start a warden.

    Local; it ends when the last of the processes has.  It has a process group of
    its own, so that what a terminal sends to the ranks spares it, but no session:
    Linux schedules sessions against each other, and 6.18 lets one wait for seconds
    behind another whose processes yield all the time, as MPI ranks do.

    Parameters
    ----------
    pids : sequence of int
        Ranks of this node.
    silence_s : float
        How long a rank may be stopped, in seconds.

    Returns
    -------
    int
        Its process.
    """
    words = [sys.executable, "-I", "-S", __file__, str(silence_s), *map(str, pids)]
    quiet = [(os.POSIX_SPAWN_OPEN, handle, os.devnull, os.O_RDWR, 0) for handle in range(3)]
    return os.posix_spawn(words[0], words, os.environ, file_actions=quiet, setpgroup=0)


def watch(pids: Sequence[int], silence_s: float) -> None:
    """Watch processes until the last one has ended.

    Parameters
    ----------
    pids : sequence of int
        Which; those that are gone already are left out.
    silence_s : float
        How long one may be stopped, in seconds.
    """
    wards = {handle: (pid, Ward()) for pid in pids if (handle := _opened(pid)) is not None}
    ended = select.poll()
    for handle in wards:
        ended.register(handle, select.POLLIN)
    while wards:
        gone = ended.poll(1e3 * silence_s / LOOKS)
        for handle, _ in gone:
            ended.unregister(handle)
            os.close(handle)
            del wards[handle]
        for handle, (pid, ward) in () if gone else wards.items():
            state, parent = _state(pid)
            if ward.is_over(state, _state(parent)[0] if state == "T" else ""):
                signal.pidfd_send_signal(handle, signal.SIGKILL)


def _opened(pid: int) -> int | None:
    """Give a handle of a process, which no other one can take over."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _state(pid: int) -> tuple[str, int]:
    """Give state and parent of a process; no state if it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return words[0], int(words[1])


if __name__ == "__main__":
    watch([int(word) for word in sys.argv[2:]], float(sys.argv[1]))
