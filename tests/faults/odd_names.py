r"""A program whose argument, folder and environment are no UTF-8 loses a rank.

closeranks run --faults -n 3 -- tests/faults/odd_names.py $(printf 'caf\xe9')
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import numpy as np

import closeranks as cr

WATCHDOG_S, STEPS = 50, 4


def main() -> None:
    """Lose seat 1, and say what the new one has been given."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    given = os.fsencode(sys.argv[1]), os.getcwdb(), os.environb.get(b"ODD")  # noqa: PTH109
    os.environb[b"ODD"] = b"caf\xe8"
    state, total = {"step": 0}, np.zeros(1)
    with cr.init(on_failure="replace") as comm:
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
