"""A rank is late: the others name it.

``late.py before|inside``: it is stopped, where nobody can make it a dead one, before
the call that waits for it or inside of it; the others go.  ``late.py attempt``: it
computes in an attempt, which all repeat.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import closeranks as cr

LIMIT_S = 1.0


def main(when: str) -> None:
    """Meet it."""
    comm = MPI.COMM_WORLD
    stopped, pids = comm.size - 2, comm.allgather(os.getpid())
    world = cr.init(timeout_s=LIMIT_S)
    given = np.ones(1 << 20)
    world.Allreduce(given, np.empty_like(given), algorithm="ring")
    if comm.rank == stopped:
        if when == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    began = time.monotonic()
    try:
        while True:
            world.Allreduce(given, np.empty_like(given), algorithm="ring")
    except cr.PeerLate as error:
        _say(comm.rank, error, began)
    if comm.rank == 0:
        time.sleep(1.0)  # the others have said it by now
        os.kill(pids[stopped], signal.SIGCONT)
    comm.Barrier()
    world.abandon()


def repeat() -> None:
    """Be late in the first attempt, and well in the second."""
    with cr.init(on_failure="shrink", timeout_s=LIMIT_S) as comm:
        given, total = np.ones(1000), np.empty(1000)
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 2 and attempt.number == 1:
                    time.sleep(LIMIT_S + 2)
                began = time.monotonic()
                try:
                    comm.Allreduce(given, total)
                except cr.PeerLate as error:
                    _say(comm.rank, error, began)
                    raise
        sys.stdout.write(f"attempt {attempt.number}: {comm.size} ranks, {total[0]:g}\n")


def _say(rank: int, error: cr.PeerLate, began: float) -> None:
    took_s = time.monotonic() - began
    sys.stdout.write(f"rank {rank}: {error.ranks} after {took_s:.1f} s: {error}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "attempt":
        repeat()
    else:
        main(sys.argv[1])
