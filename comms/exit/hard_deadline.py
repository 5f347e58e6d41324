"""Hard deadlines: the end of a process that would otherwise wait for ever.

A rank that leaves is killed, which counts as a death
(`closeranks.comms.mpi.ulfm`).  The interpreter then has no chance to write
its buffers, so `flush_buffers` writes them before.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import logging
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from closeranks.comms.exit import exit_report

#: Longest time for it, seconds: others wait for the death, and a pipe may have no reader.
_LIMIT_S: Final = 5.0
#: Base class of all files of Python; `io.IOBase` itself asks more.
_FILE: Final = io.FileIO.__mro__[-2]


def flush_buffers() -> None:
    """Write the buffers of logs and files, of Python and of the C library.

    Local; for a process that is about to end.  If that takes too long, the process
    is killed, with its group if it leads one.  Data that only closing a file
    writes, such as the end of a zip file, are lost.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S + 1)
    _kill_group_later()
    with suppress(Exception):  # of a program's own handler
        logging.shutdown()
    for one in gc.get_objects():
        if issubclass(type(one), _FILE):
            with suppress(Exception):  # closed, or any error of a program's own class
                one.flush()
    ctypes.CDLL(None).fflush(None)


def _kill_group_later() -> None:
    """Start a process that kills the group of this one if it takes too long.

    It belongs to the group, and ends with it.  An alarm of the system would end
    this process alone, and a Python handler might never run.
    """
    if os.getpgrp() != os.getpid():
        return
    ends, nowhere = f"sleep {_LIMIT_S:g}; kill -9 -{os.getpid()}", subprocess.DEVNULL
    with suppress(Exception):  # then the alarm is all that is left
        subprocess.Popen(["/bin/sh", "-c", ends], stdin=nowhere, stdout=nowhere, stderr=nowhere)


#: EX_TEMPFAIL of sysexits.h: it may go well when tried again.
TRY_AGAIN: Final = 75
#: The descriptor of standard error.
_ERRORS: Final = 2


def process_age_s() -> float:
    """Give the age of this process, time before an exec included.

    Local.

    Returns
    -------
    float
        Seconds, to a hundredth; time in which the machine slept counts.
    """
    words = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()  # any name
    began_s = int(words[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


class HardDeadline:
    """Ends the process if the ``with`` block lasts too long.

    For waits inside the MPI library that nothing can interrupt.  The report goes
    to standard error, with the stack of every thread; the launcher is told.

    Parameters
    ----------
    limit_s : float
        How long it may last, in seconds.
    report : str
        Text for standard error then.
    """

    def __init__(self, limit_s: float, report: str) -> None:
        self._limit_s, self._report = limit_s, report
        self._over = threading.Event()

    def __enter__(self) -> HardDeadline:
        threading.Thread(target=self._watch, name="closeranks hard deadline", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        if self._over.wait(self._limit_s):
            return
        try:
            os.write(_ERRORS, f"{self._report}\n".encode())  # not sys.stderr
            faulthandler.dump_traceback(_ERRORS)
            exit_report.report_overdue()
        finally:
            os._exit(TRY_AGAIN)
