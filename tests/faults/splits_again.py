"""A program that splits again and again, and loses its last rank in the middle of that.

    closeranks run --faults -n 3 -- tests/faults/splits_again.py WHEN

WHEN is "call", "free" or "kept": in a call of a communicator that has taken over the world
of the one before, before that is freed, or after it.  The survivors split on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import numpy as np

import closeranks as cr

ROUNDS, ALGORITHMS, WATCHDOG_S = 4, ("ring", "shared", "auto"), 50


def split(comm: cr.Communicator, when: str) -> None:
    """Make and free communicators; the last of three ranks dies in the third."""
    for number in range(ROUNDS):
        made = comm.Split(0, comm.rank)
        output = np.zeros(100)
        doomed = number == 2 and comm.size == 3 and comm.rank == 2
        for algorithm in ALGORITHMS:
            made.Allreduce(np.ones(100), output, algorithm=algorithm)
            assert (output == comm.size).all()
            if doomed and when == "call":
                os.kill(os.getpid(), signal.SIGKILL)
        if doomed and when == "free":
            os.kill(os.getpid(), signal.SIGKILL)
        made.Free()
        if doomed and when == "kept":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="shrink") as comm:
        for attempt in comm.attempts():
            with attempt:
                split(comm, sys.argv[1])
        split(comm, "never")
        if comm.rank == 0:
            kept = comm.membership.world.kept
            sys.stdout.write(f"{comm.size} ranks, {len(kept)} kept, epoch {kept[0].epoch}\n")


main()
