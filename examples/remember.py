"""Save in memory, lose a part of it, and go on from where it was.

closeranks run -n 4 -- examples/remember.py
"""

from __future__ import annotations

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, Shard
from closeranks.checkpoint.memory import slot_file

ROWS, COLUMNS = 64, 1000

with cr.init() as comm:
    low, high = (ROWS * at // comm.size for at in (comm.rank, comm.rank + 1))
    field = Shard(np.zeros((high - low, COLUMNS)), (ROWS, COLUMNS), (low, 0))
    state = {"field": field, "rng": np.random.default_rng(comm.rank).bit_generator.state}

    keeper = Checkpointer(comm, name="example", group=max(comm.size, 2))
    for step in range(1, 11):
        field.array += step  # what a step of a simulation would do
        pending = keeper.save(step, state)  # back after one copy
    pending.committed.wait()
    comm.Barrier()

    if comm.rank == 0:
        print(keeper.plan())
        for path, _ in slot_file.found(keeper.key):  # what a broken memory would do
            if slot_file.look(path).share.member == 1:
                path.unlink()
    comm.Barrier()

    field.array[:] = -1
    found = keeper.restore(into=state)
    assert found is not None
    step, state = found
    wrong = comm.allreduce(np.count_nonzero(field.array != sum(range(step + 1))))
    if comm.rank == 0:
        print(f"back at step {step}, {wrong} numbers wrong")
    keeper.close()
