"""Ends a rank whose step takes too long, with the stacks of all its threads.

Compiling is no hang, though it may take a minute on a machine that is busy: while any rank
compiles, all have time.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from pathlib import Path
from typing import Any

from closeranks.comms.jit import code_cache

#: As many times the limit pass before a process ends that not even a thread can look at.
_LAST = 6


class Watchdog:
    """Watches the steps of one rank from a thread of its own.

    Parameters
    ----------
    folder : Path
        The ranks tell each other there that they compile.
    rank : int
        This one.
    limit_s : float
        Seconds that a step may take.
    trace : file
        Takes the stacks.
    """

    def __init__(self, folder: Path, rank: int, limit_s: float, trace: Any) -> None:
        self._folder, self._limit_s, self._trace = folder, limit_s, trace
        self._mine = folder / f"compiling{rank}"
        self._began_s, self._share, self._is_over = time.monotonic(), 1.0, False
        threading.Thread(target=self._look, daemon=True).start()
        self._armed_s = 0.0

    def arm(self, share: float = 1.0) -> None:
        """Begin a step; it may take a share of the limit."""
        self._began_s, self._share = time.monotonic(), share
        if self._began_s > self._armed_s + 1:  # it starts a thread: not at every step
            self._armed_s = self._began_s
            faulthandler.dump_traceback_later(_LAST * self._limit_s, exit=True, file=self._trace)

    def stop(self) -> None:
        """Watch no more."""
        self._is_over = True
        faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while not self._is_over:
            time.sleep(0.5)
            # Not by the frames of the other threads: CPython 3.11 may crash on the way.
            if code_cache._Spent.depth:
                self._mine.touch()
            if self._is_late() and not self._somebody_compiles():
                self._trace.write("Timeout (hang)\n")
                self._trace.flush()
                faulthandler.dump_traceback(self._trace)
                os._exit(1)

    def _is_late(self) -> bool:
        limit_s = self._share * self._limit_s
        return not self._is_over and time.monotonic() - self._began_s > limit_s

    def _somebody_compiles(self) -> bool:
        """Tell whether a rank has compiled in the last third of the limit."""
        now_s = time.time()
        ages = [now_s - path.stat().st_mtime for path in self._folder.glob("compiling*")]
        return any(age < self._limit_s / 3 for age in ages)
