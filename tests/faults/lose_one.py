"""A program that loses a rank: every survivor says what it was told, and when.

    closeranks run --faults -n 4 -- tests/faults/lose_one.py SEAT BYTES ALGORITHM FORM

The others make collectives until one fails; which one is a matter of chance.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time

import numpy as np

import closeranks as cr

CALLS = 200
WATCHDOG_S = 40


def main() -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    seat, nbytes, algorithm, form = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    comm = cr.init()
    x, y = np.full(nbytes // 8, comm.seat + 1.0), np.zeros(nbytes // 8)
    persistent = comm.Allreduce_init(x, y, algorithm=algorithm) if form == "persistent" else None
    call, began = 0, 0.0
    try:
        while True:
            if comm.seat == seat and call == CALLS:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            if persistent is not None:
                persistent.start()
                persistent.wait()
            elif form == "request":
                comm.Iallreduce(x, y, algorithm=algorithm).wait()
            else:
                comm.Allreduce(x, y, algorithm=algorithm)
            assert (y == sum(range(1, comm.size + 1))).all(), "a result nobody agreed on"
            call += 1
    except cr.PeerLost as lost:
        waited = time.monotonic() - began
        print(  # noqa: T201 - what the test reads
            f"survivor {comm.seat}: lost {lost.ranks} {lost.seats} after {waited:.3f} s", flush=True
        )
    comm.abandon()


main()
