"""Children that rank 1 forks leave its communicator in every way; it is not theirs.

    closeranks run --faults -n 3 -- tests/faults/forks.py

Every rank prints what all have summed up afterwards, and rank 1 how its children ended.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable

import numpy as np

import closeranks as cr

WATCHDOG_S = 40


def fails(comm: cr.Communicator) -> None:
    """Raise what nobody catches."""
    raise RuntimeError(f"rank {comm.rank} has forked this one")


def exits(comm: cr.Communicator) -> None:
    """Leave by an exit."""
    sys.exit(comm.size)


def forsakes(comm: cr.Communicator) -> None:
    """Leave one that was derived, and the first one."""
    with child:
        fails(comm)


def closes(comm: cr.Communicator) -> None:
    """Close both, and give up."""
    child.close()
    comm.close()
    comm.abandon()
    os._exit(0)


WAYS: list[Callable[[cr.Communicator], None]] = [fails, exits, forsakes, closes]

faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
comm = cr.init()
child = comm.Dup()
with comm:
    total, ended = np.zeros(1), []
    for way in WAYS:
        child.Allreduce(np.ones(1), total)
        if comm.rank == 1:
            forked = os.fork()
            if not forked:
                way(comm)
            sys.stderr.write(f"{way} {forked}\n")
            ended.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
        comm.Allreduce(np.ones(1), total)
    sys.stdout.write(f"rank {comm.rank}: {total[0]:g} {ended}\n")
