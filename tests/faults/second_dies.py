"""A rank dies; while a new process is started for its seat, a second one does.

    closeranks run --faults -n 4 -- second_dies.py SEAT SECONDS|told

SECONDS after the first death: where processes start faster, soon after the
new one has come; or when all have told each other what it is to run.  The job
goes on until both seats have got somebody new.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.faults import respawn

WATCHDOG_S = 50


def die_when_told() -> None:
    """End this process when it has told the others what it runs."""
    tell = respawn._in_common

    def told(everybody: MPI.Intracomm) -> dict[str, str | None]:
        tell(everybody)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    respawn._in_common = told


def main() -> None:
    """Step; say at the end how many newcomers every seat has had."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    second, when = int(sys.argv[1]), sys.argv[2]
    comm = cr.init(on_failure="replace")
    if when == "told" and comm.seat == second and not comm.joined:
        die_when_told()
    given, taken, step = np.ones(1000), np.zeros(1000), 0
    while step < 20 or sum(map(comm.incarnation, comm.alive)) < 2:
        for attempt in comm.attempts():
            with attempt:
                step = comm.allreduce(step, MPI.MAX)
                if step == 10 and comm.epoch == 0:
                    if comm.seat == second and when != "told":
                        end = (os.getpid(), signal.SIGKILL)
                        threading.Timer(float(when), os.kill, end).start()
                    elif comm.seat == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                comm.Allreduce(given, taken)
        step += 1
        assert taken[0] == comm.size
    came = " ".join(str(comm.incarnation(seat)) for seat in comm.alive)
    print(f"seat {comm.seat} of {comm.size}: {came}", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
