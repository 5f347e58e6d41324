"""A rank dies; another one has an error when a new process has come, before all go on.

closeranks run --faults -n 3 -- tests/faults/gives_up.py
"""

from __future__ import annotations

import faulthandler
import os
import signal

import numpy as np

import closeranks as cr

WATCHDOG_S = 50


def fail_when_others_come(comm: cr.Communicator) -> None:
    """Leave the recovery by an error, between its two worlds."""
    spare_pool = comm.membership.family.spare_pool
    assert spare_pool is not None
    enlist = spare_pool.enlist

    def failing(vacant: int, limit_s: float) -> bool:
        if enlist(vacant, limit_s):
            raise RuntimeError("no more coffee")
        return False

    vars(spare_pool)["enlist"] = failing


def main() -> None:
    """Sum with two who are new; say in which epoch."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="replace") as comm:
        if comm.seat == 1 and not comm.joined:
            fail_when_others_come(comm)
        total = np.zeros(1)
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 0 and not comm.joined:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.Allreduce(np.ones(1), total)
        print(f"seat {comm.seat} of {total[0]:g}, epoch {comm.epoch}", flush=True)  # noqa: T201 - what the test reads


main()
