"""Save to disk, lose all memory, and come back on fewer ranks.

closeranks run -n 3 -- examples/come_back.py
"""

from __future__ import annotations

import shutil
import tempfile

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, Shard

ROWS, COLUMNS = 60, 1000


def part(comm: cr.Communicator) -> Shard:
    """Give the rows of this rank."""
    low, high = (ROWS * at // comm.size for at in (comm.rank, comm.rank + 1))
    return Shard(np.zeros((high - low, COLUMNS)), (ROWS, COLUMNS), (low, 0))


with cr.init() as comm:
    # A job would take a folder that it finds again.
    place = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else "")

    field = part(comm)
    with Checkpointer(comm, name="example", persist=place) as keeper:
        for step in range(1, 6):
            field.array += step  # what a step of a simulation would do
            keeper.save(step, {"field": field, "step": step})
    # Its end has waited for the disk, and removed what was in memory.

    fewer = max(1, comm.size - 1)
    others = comm.Split(comm.rank < fewer, comm.rank)
    if comm.rank < fewer:
        with Checkpointer(others, name="example", persist=place) as keeper:
            found = keeper.restore(into={"field": part(others), "step": 0})
        assert found is not None
        step, state = found
        wrong = others.allreduce(np.count_nonzero(state["field"].array != sum(range(step + 1))))
        if others.rank == 0:
            text = f"step {step} was shared by {comm.size} ranks; back on {others.size} ranks"
            print(f"{text}, {wrong} numbers wrong")

    others.close()
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(place)
