"""A program that goes to another folder before it loses a rank: the new one finds it.

And it reads its input, which is empty.

closeranks run --faults -n 3 -- tests/faults/goes_away.py
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile

import numpy as np

import closeranks as cr

WATCHDOG_S, STEPS = 50, 4


def main() -> None:
    """Lose seat 1, and say who is there in the end."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    if "CLOSERANKS_JOINS" in os.environ:
        assert not sys.stdin.read(), "what the launcher is given goes to the first rank"
    state, total = {"step": 0}, np.zeros(1)
    with tempfile.TemporaryDirectory() as elsewhere:
        os.chdir(elsewhere)
        with cr.init(on_failure="replace") as comm:
            while state["step"] < STEPS:
                for attempt in comm.attempts():
                    with attempt:
                        comm.synchronize(state)
                        if (comm.seat, state["step"], comm.joined) == (1, 2, False):
                            os.rmdir(elsewhere)  # noqa: PTH106
                            os.kill(os.getpid(), signal.SIGKILL)
                        comm.Allreduce(np.ones(1), total)
                state["step"] += 1
            print(f"seat {comm.seat} of {total[0]:g}, joined: {comm.joined}", flush=True)  # noqa: T201
            os.chdir("/")


main()
