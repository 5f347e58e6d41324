"""Three of four ranks die together; newcomers bring two states, and outvote nobody.

    closeranks run --faults -n 4 --spares 3 -- two_states.py WAY

WAY is "twice" (both in each attempt), "child" (the first on a communicator of the
newcomers alone), "failed" (the first attempt of the newcomers fails between the two)
or "later" (both after the loop).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Any

import numpy as np

import closeranks as cr

WATCHDOG_S, STEPS, LAST = 45, 4, 2


def bring(comm: cr.Communicator, way: str, model: dict[str, Any], sums: dict[str, Any]) -> None:
    """Make both states alike, and die where that is due."""
    if way == "child":
        part = comm.Split(int(comm.joined), comm.rank)
        part.synchronize({"own": 1})
        part.Free()
    if way != "later":
        comm.synchronize(model)
    if way == "failed" and comm.epoch == 1 and comm.seat == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if way != "later":
        comm.synchronize(sums)
    if comm.epoch == 0 and model["step"] == LAST and comm.seat > 0:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Step, and say what both states are in the end."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    way = sys.argv[1]
    model, sums = {"step": 0}, {"sum": np.zeros(3)}
    with cr.init(on_failure="replace", recruits=False) as comm:
        total, steps = np.empty(3), 0
        while model["step"] < STEPS:
            for attempt in comm.attempts():
                with attempt:
                    bring(comm, way, model, sums)
                    comm.Allreduce(np.ones(3), total)
            if way == "later":
                comm.synchronize(model)
                comm.synchronize(sums)
            model["step"] += 1
            steps += 1
            sums["sum"] += 1
        assert comm.joined or steps == STEPS, "it was thrown back"
        said = f"seat {comm.seat}: step {model['step']}, sum {sums['sum'][0]:g}"
        print(said, flush=True)  # noqa: T201 - what the test reads


main()
