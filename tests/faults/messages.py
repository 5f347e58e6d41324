"""A rank repeats an attempt, nobody dies, and the others wait for several requests.

    closeranks run --faults -n 3 -- messages.py

`MPI.Request.Waitall` says that one of them has failed, not why.
"""

from __future__ import annotations

import faulthandler
import time
from itertools import product

import numpy as np
from mpi4py import MPI

import closeranks as cr

WATCHDOG_S = 50


def begun(comm: cr.Communicator, kind: str, given: object, taken: object) -> list[MPI.Request]:
    """Begin what needs all ranks."""
    if kind == "native":
        return [comm.Iallgather(given, taken, algorithm="native")]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return [comm.Irecv(taken, left), comm.Isend(given, right)]


def main() -> None:
    """Meet it in messages and in a collective, here and on what came of this."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="shrink") as comm:
        child, numbers = comm.Dup(), []
        for one, kind in product((comm, child), ("messages", "native")):
            given, taken = np.full(10, comm.rank), np.full(10 * comm.size, -1)
            for attempt in comm.attempts():
                with attempt:
                    if attempt.number == 1 and comm.rank == 1:
                        time.sleep(0.2)
                        raise cr.Revoked("an attempt on purpose")
                    MPI.Request.Waitall(begun(one, kind, given, taken))
            left = (comm.rank - 1) % comm.size
            assert (taken[:10] == (0 if kind == "native" else left)).all()
            numbers.append(attempt.number)
    print(f"seat {comm.seat}: {numbers}", flush=True)  # noqa: T201 - what the test reads


main()
