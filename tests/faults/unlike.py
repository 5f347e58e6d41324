"""A program whose ranks have variables of their own loses one of them, or all in turn.

closeranks run --faults -n 3 -- env WRAPPED=1 tests/faults/unlike.py [asks] [all] [hidden]
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.collectives.faults import respawn

WATCHDOG_S, STEPS = 50, 6
GIVEN = ("MINE", "OURS", "GONE", "WRAPPED")


def hidden(process: int | str) -> dict[str, str]:
    """Be what the system does not tell: the environment of who has changed its user."""
    raise PermissionError(f"/proc/{process}/environ")


def hindered(comm: cr.Communicator) -> AbstractContextManager[object]:
    """Hide the environment of seat 2."""
    return mock.patch.object(respawn, "_environment", hidden) if comm.seat == 2 else nullcontext()


def main() -> None:
    """Lose seat 1, then the others if asked to, and say what new ones have been given."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    given = tuple(map(os.environ.get, GIVEN))
    dies = {2: 1, 3: 0, 4: 2} if "all" in sys.argv else {2: 1}
    state, total = {"step": 0}, np.zeros(1)
    os.environ |= {"MINE": str(os.getpid()), "OURS": "all", "PWD": "/"}
    os.environ.pop("GONE", None)
    with (
        cr.init(on_failure="replace", recruits="asks" in sys.argv or None) as comm,
        hindered(comm) if "hidden" in sys.argv else nullcontext(),
    ):
        for name in [name for name in os.environ if name.startswith("PMIX_SERVER_")]:
            del os.environ[name]  # as before jobs of one's own
        while state["step"] < STEPS:
            for attempt in comm.attempts():
                with attempt:
                    comm.synchronize(state)
                    if (dies.get(state["step"]), comm.joined) == (comm.seat, False):
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(np.ones(1), total)
            state["step"] += 1
        print(f"seat {comm.seat} of {total[0]:g}: {given}", flush=True)  # noqa: T201


main()
