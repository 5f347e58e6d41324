"""Random walks that go on where they were, whatever has ended them: see keep_going.sh.

closeranks run -n 4 -- examples/keep_going.py 2000
"""

from __future__ import annotations

import signal
import sys

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer

RELAUNCH = 75
steps = int(sys.argv[1])
signals: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))  # the time is nearly up

with cr.init() as comm:
    keeper = Checkpointer(comm, name="keep_going", interval=0.2)  # seconds; "auto" for real work
    rng, walks, step = np.random.default_rng(comm.rank), np.zeros(1000), 0
    found = keeper.restore()
    if found is not None:
        step, state = found
        walks, rng.bit_generator.state = state["walks"], state["rng"]
    if comm.rank == 0:
        print(f"from step {step}", flush=True)

    while step < steps and not comm.allreduce(len(signals)):
        walks += rng.standard_normal(len(walks))
        step += 1
        keeper.save(step, {"walks": walks, "rng": rng.bit_generator.state})
        if step % 100 == 0 and comm.rank == 0:
            print(f"step {step}", flush=True)

    if step < steps:
        last = {"walks": walks, "rng": rng.bit_generator.state}
        keeper.save(step, last, now=True).committed.wait()
    sums = comm.gather(float(walks.sum()), root=0)
    if comm.rank == 0:
        print(f"{'done' if step == steps else 'stopped'} at step {step}, sums {sums}", flush=True)
    keeper.close(keep=step < steps)

sys.exit(0 if step == steps else RELAUNCH)
