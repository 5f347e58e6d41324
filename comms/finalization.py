"""The end of a process that would stay in MPI_Finalize for ever.

Open MPI 5.0.11 may never return from there when a rank is killed meanwhile: it
notices under the lock of a connection, and answers a message over that one.
Python has ended by then, so only the system can still do something.
"""

from __future__ import annotations

import signal
from typing import Final


class Finalization:
    """Lets the system end a process that goes on for long without Python.

    mpi4py finalizes MPI when there is no Python any more.  This object goes with
    the last of Python, after all that the program does when it exits, however long
    that takes, and sets a timer, whose signal ends the process.

    Parameters
    ----------
    limit_s : float
        How long MPI_Finalize may take, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        # names of modules are gone by then
        self._start = signal.setitimer
        self._timer, self._limit_s = signal.ITIMER_REAL, limit_s

    def __del__(self) -> None:
        self._start(self._timer, self._limit_s)


_last: Final[list[Finalization]] = []


def limit(limit_s: float) -> None:
    """Set how long MPI_Finalize may take.  Local; the first counts.

    Parameters
    ----------
    limit_s : float
        In seconds.
    """
    if not _last:
        _last.append(Finalization(limit_s))
