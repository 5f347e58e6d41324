"""A program that leaves by an exception, and has written what is not out yet.

closeranks run --faults -n 2 -- tests/faults/unwritten.py FOLDER [hangs]
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import logging
import logging.handlers
import os
import subprocess
import sys
import time
from pathlib import Path

import closeranks as cr

WATCHDOG_S = 50
HERE = Path(sys.argv[1])


class Mine(io.StringIO):
    """A file of a program's own, which does what it likes."""

    def flush(self) -> None:
        """Fail, or take for ever."""
        if "hangs" in sys.argv:
            time.sleep(600)
        raise RuntimeError("no more coffee")


def stream(path: Path) -> None:
    """Write into a file of the C library, which stays open."""
    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    library.fputs(b"here\n", ctypes.c_void_p(library.fopen(os.fsencode(path), b"w")))


def main() -> None:
    """Write, and leave."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="shrink") as comm:
        text = (HERE / f"text.{comm.seat}").open("w")
        raw = (HERE / f"bytes.{comm.seat}").open("wb")
        text.write("here\n")
        raw.write(b"here\n")
        stream(HERE / f"stream.{comm.seat}")
        log = logging.FileHandler(HERE / f"log.{comm.seat}")
        logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=log))
        logging.getLogger().warning("here")
        mine = Mine()
        if "hangs" in sys.argv:
            subprocess.Popen(["sleep", "600"])  # holds the launcher's pipes
        comm.Barrier()
        raise RuntimeError(f"both leave, {mine.closed=}")


main()
