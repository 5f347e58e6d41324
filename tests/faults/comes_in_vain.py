"""A rank dies, and whoever is started in its place fails before its first attempt.

closeranks run --faults -n 3 -- tests/faults/comes_in_vain.py
"""

from __future__ import annotations

import faulthandler
import os
import signal
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.collectives.faults import respawn

WATCHDOG_S, STEPS = 50, 20
#: So many are started; each takes seconds.
NEWCOMERS = 3


def main() -> None:
    """Step; say at the end how many are left."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with (
        mock.patch.object(respawn, "_MOST_IN_VAIN", NEWCOMERS),
        cr.init(on_failure="replace") as comm,
    ):
        if comm.joined:
            raise RuntimeError("no more coffee")
        total = np.zeros(1)
        for step in range(STEPS):
            for attempt in comm.attempts():
                with attempt:
                    if (comm.seat, step) == (1, STEPS // 2):
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(np.ones(1), total)
        print(f"seat {comm.seat} of {total[0]:g}, epoch {comm.epoch}", flush=True)  # noqa: T201 - what the test reads


main()
