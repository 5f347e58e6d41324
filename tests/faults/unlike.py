"""A program whose ranks have variables of their own loses one of them.

closeranks run --faults -n 3 -- tests/faults/unlike.py [asks]
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import closeranks as cr

WATCHDOG_S, STEPS = 50, 4


def main() -> None:
    """Lose seat 1, and say what the new one has been given."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    given = os.environ.get("MINE"), os.environ.get("OURS"), os.environ.get("GONE")
    state, total = {"step": 0}, np.zeros(1)
    os.environ |= {"MINE": str(MPI.COMM_WORLD.rank), "OURS": "all"}
    os.environ.pop("GONE", None)
    with cr.init(on_failure="replace", recruits="asks" in sys.argv or None) as comm:
        while state["step"] < STEPS:
            for attempt in comm.attempts():
                with attempt:
                    comm.synchronize(state)
                    if (comm.seat, state["step"], comm.joined) == (1, 2, False):
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(np.ones(1), total)
            state["step"] += 1
        print(f"seat {comm.seat} of {total[0]:g}: {given}", flush=True)  # noqa: T201


main()
