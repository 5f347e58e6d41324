"""The end of a process that would wait for ever."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from closeranks.comms.exit import exit_report

#: EX_TEMPFAIL of sysexits.h: it may go well when tried again.
TRY_AGAIN: Final = 75
#: The file that errors go to.
_ERRORS: Final = 2


def age_s() -> float:
    """Say how long ago this process was started, with what it was before an exec.

    Local.

    Returns
    -------
    float
        Seconds, to a hundredth; time in which the machine slept counts.
    """
    words = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()  # any name
    began_s = int(words[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


class LastResort:
    """Ends the process if the ``with`` block lasts too long, whatever it waits for.

    For waits inside the MPI library that nothing can interrupt.  The report goes
    to standard error, with where every thread was; the launcher is told.

    Parameters
    ----------
    limit_s : float
        How long it may last, in seconds.
    report : str
        What is said then.
    """

    def __init__(self, limit_s: float, report: str) -> None:
        self._limit_s, self._report = limit_s, report
        self._over = threading.Event()

    def __enter__(self) -> LastResort:
        threading.Thread(target=self._watch, name="closeranks last resort", daemon=True).start()
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
            os.write(_ERRORS, f"{self._report}\n".encode())  # whatever became of sys.stderr
            faulthandler.dump_traceback(_ERRORS)
            exit_report.overdue()
        finally:
            os._exit(TRY_AGAIN)
