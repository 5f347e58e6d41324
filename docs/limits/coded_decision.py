"""What a round of a coded all-reduce costs beside the work.

    closeranks run -n 2 -- docs/limits/coded_decision.py

Each rank reads the node's clock when its last micro-batch ends, and when `step` is back.
Rank 0 prints medians: a whole empty round, from the last rank's work to the first rank that
is back, and to the last one.  The sum is of 8 bytes, so the decision is nearly all of it.
"""

from __future__ import annotations

import time

import numpy as np

import closeranks
from closeranks.collectives.coded import CodedAllreduce, PartialRepetition, Repetition, Uncoded
from closeranks.collectives.communicator.communicator import Communicator

ROUNDS = 2000
GRADIENT = np.ones(1)


def main() -> None:
    """Measure three schemes."""
    with closeranks.init() as comm:
        n = comm.size
        for scheme in (Uncoded(n), Repetition(n, n - 1), PartialRepetition(n, n - 1, micro=1)):
            with CodedAllreduce(comm, scheme) as coded:
                read_clock(comm, coded, type(scheme).__name__)


def read_clock(comm: Communicator, coded: CodedAllreduce, name: str) -> None:
    """Measure the rounds of one scheme."""
    times = np.zeros((ROUNDS, 3))
    for began, ended, back in times[:, :, None]:

        def compute(_number: int, ended: np.ndarray = ended) -> np.ndarray:
            ended[:] = time.perf_counter()
            return GRADIENT

        began[:] = time.perf_counter()
        coded.step(compute, comm.size)
        back[:] = time.perf_counter()
    all_times = np.stack(comm.allgather(times))
    if comm.rank == 0:
        whole = np.median(all_times[:, :, 2] - all_times[:, :, 0])
        last = all_times[:, :, 1].max(axis=0)
        first_back, last_back = (
            1e6 * np.median(pick(axis=0) - last)
            for pick in (all_times[:, :, 2].min, all_times[:, :, 2].max)
        )
        print(  # noqa: T201
            f"{name}: a round {1e6 * whole:.1f} us, from the last work to the first rank that is"
            f" back {first_back:.1f} us, to the last {last_back:.1f} us",
            flush=True,
        )


main()
