"""Lose a rank again and again, and count the open files of one that stays."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import numpy as np

import closeranks as cr

WATCHDOG_S = 50
KILLS = 4


def main() -> None:
    """Count in every attempt after a death, when all are connected again."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="replace")
    given, taken, counts = np.ones(100), np.zeros(100), []
    for attempt in comm.attempts():
        with attempt:
            comm.Allreduce(given, taken)
            for peer in set(range(comm.size)) - {comm.rank}:  # so that all are connected
                comm.Sendrecv(given, peer, recvbuf=taken.copy(), source=peer)
            if comm.epoch:
                counts.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
            if comm.seat == 1 and comm.epoch < KILLS:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Allreduce(given, taken)
    assert taken[0] == comm.size
    if comm.seat == 0:
        print(f"open files: {counts}", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
