"""A rank dies with a long message under way that its receiver has not asked for yet.

    closeranks run --faults -n 2 -- unasked.py

Rank 0 lets the library hear of the message, and then of the death.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time

import closeranks as cr
from closeranks.comms.mpi import ulfm

WATCHDOG_S = 20
#: More than a message brings at once.
LONG = bytes(1 << 20)


def main() -> None:
    """Say at the end who is left, and in which attempt."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="shrink")
    for attempt in comm.attempts():
        with attempt:
            comm.allgather(comm.rank)  # all are connected
            if comm.epoch == 0 and comm.seat == 1:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            elif comm.epoch == 0 and comm.seat == 0:
                until_s = time.monotonic() + 1
                while time.monotonic() < until_s:
                    ulfm.listen()
            told = comm.bcast(LONG if comm.rank == comm.size - 1 else None, root=comm.size - 1)
            every = comm.allgather(LONG[: 1 << 16])
    assert told == LONG
    assert every == [LONG[: 1 << 16]] * comm.size
    print(f"seat {comm.seat} of {comm.size}, attempt {attempt.number}", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
