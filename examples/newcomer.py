"""A computation that loses a rank on the way, and gets another one in its seat.

Run with ``closeranks run --faults -n 3 --spares 1 -- examples/newcomer.py``.

Every rank multiplies some rows of a matrix with a vector that all of them hold;
after many steps it is the vector that the matrix only stretches.  Amid them one
rank kills itself.  A spare takes its seat and gets step and vector of the others.
"""

import os
import signal

import numpy as np

import closeranks as cr

SIZE, STEPS = 300, 60
matrix = np.random.default_rng(1).random((SIZE, SIZE))
matrix += matrix.T

with cr.init(on_failure="replace") as comm:
    rows = matrix[comm.rank * SIZE // comm.size : (comm.rank + 1) * SIZE // comm.size]
    state = {"step": 0, "vector": np.ones(SIZE)}
    longer = np.empty(SIZE)
    while state["step"] < STEPS:
        for attempt in comm.attempts():
            with attempt:
                comm.synchronize(state)
                if comm.seat == 1 and state["step"] == STEPS // 2 and not comm.joined:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.Allgather(rows @ state["vector"], longer)
        stretched = np.linalg.norm(longer) / np.linalg.norm(state["vector"])
        state["vector"] = longer / np.linalg.norm(longer)
        state["step"] += 1
    if comm.joined:
        print(f"rank {comm.rank} joined in epoch {comm.epoch}", flush=True)
    if comm.rank == 0:
        largest = np.linalg.eigvalsh(matrix)[-1]
        print(f"stretched {stretched:.9f} times, the largest eigenvalue is {largest:.9f}")
        assert abs(stretched - largest) < 1e-9 * largest
