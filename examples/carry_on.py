"""A simulation that loses a rank on the way, and carries on without it.

Run with ``closeranks run --faults -n 4 -- examples/carry_on.py``.

Every rank owns points of a sine wave and finds its mean square.  After ten
steps one rank kills itself; the others share its points among themselves.
"""

import os
import signal

import numpy as np

import closeranks as cr

POINTS, STEPS = 1 << 20, 20


def mine(comm: cr.Communicator) -> np.ndarray:
    """Give the points of this rank, among the members there are now."""
    return np.array_split(np.linspace(0, 2 * np.pi, POINTS, endpoint=False), comm.size)[comm.rank]


with cr.init(on_failure="shrink") as comm:
    total = np.zeros(1)
    for step in range(STEPS):
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 1 and step == STEPS // 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                part = np.sum(np.sin(mine(comm)) ** 2, keepdims=True)
                comm.Allreduce(part, total)
        if attempt.lost and comm.rank == 0:
            print(f"step {step}: lost {attempt.lost}, {attempt.world} ranks go on", flush=True)
        assert abs(total[0] / POINTS - 0.5) < 1e-12, "a part is missing, or twice there"
    if comm.rank == 0:
        print(f"mean square {total[0] / POINTS:.12f} after {STEPS} steps, epoch {comm.epoch}")
