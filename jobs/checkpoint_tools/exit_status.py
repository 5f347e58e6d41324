"""An end that somebody asks for, and that leaves nothing half done behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: What ends a program at once unless it says otherwise; SIGINT raises in Python anyway.
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
#: Seconds in which the same is told twice, by a launcher and to its group of processes.
_ECHO_S: Final = 5.0


@contextmanager
def orderly() -> Iterator[None]:
    """Leave by an exception where the system would end the program.

    Local.  What was begun undoes itself then, as it does after an error; the exit
    status is 128 and the number of the signal.  Signals that somebody handles or
    ignores stay as they are, and so do all on another thread than the main one.

    Raises
    ------
    SystemExit
        When the program is told to end.
    """
    told_s = float("-inf")

    def end(number: int, _: object) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > _ECHO_S:  # one more would cut the undoing off
            told_s = time.monotonic()
            raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _ENDS if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
