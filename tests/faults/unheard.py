"""A rank dies, and what another one waits for in a call is lost with it.

    closeranks run --faults -n 4 -- unheard.py

Rank 1 receives from rank 0, which lives and sends nothing: the library has no
reason to end that.  All others have voted.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import numpy as np

import closeranks as cr

WATCHDOG_S = 40


def main() -> None:
    """Say at the end who is left, and in which attempt."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="shrink")
    given, taken = np.ones(1000), np.zeros(1000)
    for attempt in comm.attempts():
        with attempt:
            comm.Allreduce(given, taken)
            if comm.epoch == 0 and comm.seat == 1:
                comm.Recv(taken, source=0)
            elif comm.epoch == 0 and comm.seat == 2:
                time.sleep(0.2)  # the others have voted
                os.kill(os.getpid(), signal.SIGKILL)
    assert taken[0] == comm.size
    print(f"seat {comm.seat} of {comm.size}, attempt {attempt.number}", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
