"""A program that loses a rank in calls that machine code hands to the library.

    closeranks run --faults -n 4 -- tests/faults/lose_known.py SEAT METHOD ALGORITHM

Every survivor says what it was told, as those of ``lose_one.py`` do.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import closeranks as cr

CALLS = 200
COUNT = 64
WATCHDOG_S = 40


def main() -> None:
    """Make calls until one fails; which one is a matter of chance."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    seat, method, algorithm = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    operation = method.lower()
    comm = cr.init(tuning={operation: "native"})
    x, y = np.full(COUNT, 1.0), np.zeros(COUNT)
    given = {"Allreduce": (x, y), "Bcast": (x,), "Allgather": (x, np.zeros(COUNT * comm.size))}
    arguments = given[method]
    named = {} if algorithm == "auto" else {"algorithm": algorithm}
    comm.Allreduce(x, y, algorithm="ring")  # what takes the short way is loaded with the rest
    call, began = 0, 0.0
    told: tuple[str, BaseException | None] = "", None
    try:
        while True:
            if call == CALLS:
                taken = comm._service.shortcuts.calls()[operation, "native"]
                assert taken > CALLS // 2, f"{taken} calls took the short way"
                if comm.seat == seat:
                    os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            getattr(comm, method)(*arguments, **named)
            call += 1
    except cr.PeerLost as lost:
        waited = time.monotonic() - began
        told = lost.operation, lost.__cause__
        print(  # noqa: T201 - what the test reads
            f"survivor {comm.seat}: lost {lost.ranks} {lost.seats} after {waited:.3f} s", flush=True
        )
    assert told[0] == operation, told
    assert isinstance(told[1], MPI.Exception), "what the library said"
    assert comm.membership.family.world.revoked, "others may wait for this rank"
    comm.abandon()


main()
