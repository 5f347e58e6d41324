"""A rank dies; while its newcomer gets the state, another one does.

    closeranks run --faults -n 4 --spares 2 -- state_dies.py SEAT SECONDS

SECONDS after the state has begun to travel, which takes some 0.1 s.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.collectives.replicated.synchronization import _Comparison

WATCHDOG_S, STEPS, LENGTH = 50, 3, 1 << 24


def main() -> None:
    """Step, and say what the state is in the end."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    second, after_s = int(sys.argv[1]), float(sys.argv[2])
    state: dict[str, Any] = {"step": 0, "w": np.ones(LENGTH), "part": np.ones(LENGTH)[::4]}
    total, exchange = np.empty(1), _Comparison.exchange

    def doomed(found: _Comparison) -> Any:
        if (comm.epoch, comm.seat) == (1, second):
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            return exchange(found)
        except Exception as error:  # whose frames hold buffers that may be written still
            raise error.with_traceback(None) from None

    with (
        mock.patch.object(_Comparison, "exchange", doomed),
        cr.init(on_failure="replace", recruits=False) as comm,
    ):
        while state["step"] < STEPS or comm.epoch < 2:
            for attempt in comm.attempts():
                with attempt:
                    comm.synchronize(state)
                    if (comm.epoch, comm.seat, state["step"]) == (0, 1, 1):
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(np.full(1, 2.0**comm.seat), total)
            state["step"] += 1
            state["w"] += total
            state["part"] += total
        ends = [end(state[name]) for name in ("w", "part") for end in (np.min, np.max)]
        found = np.unique(ends) - 15 * state["step"]
        said = f"seat {comm.seat} of {comm.size}, epoch {comm.epoch}: {found}"
        print(said, flush=True)  # noqa: T201 - what the test reads


main()
