"""Two ranks die together; of the two new processes in their seats one dies again."""

from __future__ import annotations

import faulthandler
import os
import signal

import numpy as np
from mpi4py import MPI

import closeranks as cr

WATCHDOG_S = 50


def main() -> None:
    """Step; say at the end how many newcomers every seat has had."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="replace")
    given, taken, step = np.ones(1000), np.zeros(1000), 0
    while step < 40:
        for attempt in comm.attempts():
            with attempt:
                step = comm.allreduce(step, MPI.MAX)
                came = comm.incarnation(comm.seat)
                if (comm.seat, step, came) in ((1, 10, 0), (2, 10, 0), (1, 20, 1)):
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.Allreduce(given, taken)
        step += 1
        assert taken[0] == comm.size
    all_came = " ".join(str(comm.incarnation(seat)) for seat in comm.alive)
    print(f"seat {comm.seat} of {comm.size}: {all_came}", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
