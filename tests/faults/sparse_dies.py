"""A rank is killed amid `Allreduce_sparse`; the others go on with their own sum.

    closeranks run --faults -n 4 -- tests/faults/sparse_dies.py ALGORITHM KERNEL

KERNEL is the step amid which the rank dies.  Every rank that is left ends with "seat N: ok".
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from typing import Any
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.collectives.plans.apply_kernels import KERNELS
from closeranks.collectives.sparse import SparseVector

WATCHDOG_S = 50
GONE, OFTEN = 1, 5
LENGTH = 1 << 40


def dying(comm: cr.Communicator, kernel: str) -> Any:
    """Let a rank die at a later run of a kernel."""
    real, left = KERNELS[kernel], [OFTEN]

    def called(*arguments: Any) -> Any:
        left[0] -= 1
        if comm.epoch == 0 and comm.seat == GONE and not left[0]:
            time.sleep(0.05)  # the others wait by now
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    return mock.patch.dict(KERNELS, {kernel: called})


def summed(comm: cr.Communicator, algorithm: str, turn: int) -> None:
    """Sum the vectors of the ranks there are, and compare."""
    every = [(np.arange(seat, 3000, 2) << 20) + turn for seat in comm.alive]
    mine = every[comm.alive.index(comm.seat)]
    vector = SparseVector(mine, np.full(len(mine), float(comm.seat + 1)), LENGTH)
    found = comm.Allreduce_sparse(vector, algorithm=algorithm)
    wanted, places = np.unique(np.concatenate(every), return_inverse=True)
    values = np.concatenate([np.full(len(one), seat + 1.0)
                             for one, seat in zip(every, comm.alive, strict=True)])  # fmt: skip
    assert (found.indices == wanted).all()
    assert (found.values == np.bincount(places, values)).all()


def main(algorithm: str, kernel: str) -> None:
    comm = cr.init(on_failure="shrink")
    seat = comm.seat
    with dying(comm, kernel):
        for turn in range(20):
            for attempt in comm.attempts():
                with attempt:
                    summed(comm, algorithm, turn)
    assert (comm.size, comm.epoch) == (3, 1)
    print(f"seat {seat}: ok", flush=True)  # noqa: T201
    comm.close()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    main(sys.argv[1], sys.argv[2])
