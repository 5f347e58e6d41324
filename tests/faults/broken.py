"""A connection between two members breaks, and both live: each takes the other one for dead.

    closeranks run --faults -n 4 -- tests/faults/broken.py SEAT SEAT COMPUTES_S

Who is left says how many are, and whether their sums are right.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time
from collections.abc import Iterable

import numpy as np
import psutil

import closeranks as cr

WATCHDOG_S = 20


def cut(theirs: Iterable[tuple[object, object]]) -> None:
    """Break the connection that this process has with the one that has these."""
    for one in psutil.Process().net_connections("tcp4"):
        if (one.raddr, one.laddr) in theirs:
            socket.socket(fileno=os.dup(one.fd)).shutdown(socket.SHUT_RDWR)
            return
    raise AssertionError(theirs)


def main() -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    first, second, computes_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with cr.init(on_failure="shrink") as comm:
        for step in range(4):
            for attempt in comm.attempts():
                with attempt:
                    if step == 2 and attempt.number == 1 and comm.seat == first:
                        ends = psutil.Process().net_connections("tcp4")
                        comm.send([(tuple(one.laddr), tuple(one.raddr)) for one in ends], second)
                        time.sleep(computes_s)
                    elif step == 2 and attempt.number == 1 and comm.seat == second:
                        cut(comm.recv(source=first))
                    taken = np.empty(20_000)
                    comm.Allreduce(np.full(20_000, 2.0**comm.seat), taken)
                    assert (taken == taken[0]).all()
                    assert int(taken[0]).bit_count() == comm.size
        print(f"{comm.size} ranks, epoch {comm.epoch}", flush=True)  # noqa: T201


main()
