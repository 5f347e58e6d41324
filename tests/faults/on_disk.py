"""A job whose saves go to disk, and that is told to end, or killed; another one that restores.

    python -m tests.faults.on_disk NAME PLACE save POINT RANKS   killed while step 3 is written
    python -m tests.faults.on_disk NAME PLACE stuck              told to end in a call without end
    python -m tests.faults.on_disk NAME PLACE restore

POINT is one of `POINTS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer
from closeranks.checkpoint.disk import hdf5_writer
from tests.faults.remember import ROWS, always, check, die_at, say, state_of, wanted, whole

#: Point -> what is called there, which call counts, whether death comes after it.
POINTS: dict[str, tuple[Any, str, int, Any, bool]] = {
    "laid out": (hdf5_writer, "_lay_out", 1, always, True),
    "in the data": (hdf5_writer, "_write", 4, always, True),
    "before the mark": (hdf5_writer, "complete", 1, always, False),
    "before the name": (Path, "replace", 1, always, False),
    "named": (hdf5_writer, "sync", 1, always, False),
}


def save(name: str, place: str, point: str, dying: str) -> None:
    """Save, and die while the last step is written."""
    with cr.init() as comm:
        keeper = Checkpointer(comm, name=name, persist=place)
        for step in (1, 2):
            keeper.save(step, state_of(comm.rank, comm.size, step)).persisted.wait(30)
        comm.Barrier()
        if str(comm.rank) in dying.split(","):
            die_at(*POINTS[point])
        keeper.save(3, state_of(comm.rank, comm.size, 3)).persisted.wait(30)
        say("saved 3")


def stuck(name: str, place: str) -> None:
    """Be told to end while the main thread waits, below Python, for what never comes."""
    with cr.init() as comm, Checkpointer(comm, name=name, persist=place, persist_every=9) as keeper:
        for step in (1, 2):
            keeper.save(step, state_of(comm.rank, comm.size, step)).committed.wait(30)
        comm.Barrier()
        say(f"saved {step}")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        from mpi4py import MPI

        MPI.COMM_WORLD.Recv(np.empty(1), MPI.COMM_WORLD.rank, 99)


def restore(name: str, place: str) -> None:
    """Restore from disk, on four ranks or another number of them."""
    with cr.init() as comm:
        keeper = Checkpointer(comm, name=name, persist=place)
        found = keeper.restore(into=None if comm.size == 4 else wanted(comm))
        assert found is not None
        step, state = found
        if comm.size == 4:
            check(state, comm.rank, comm.size, step)
        else:
            low, high = ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size
            np.testing.assert_array_equal(state["part"].array, whole(step)[low:high])
            np.testing.assert_array_equal(state["alike"], np.arange(100_000.0) + step)
            assert state["own"] == [rank + step for rank in range(4)]
        comm.Barrier()
        keeper.save(step + 1, {"done": step}).persisted.wait(30)
        newest = keeper.steps()[-1]
        if comm.rank == 0:
            say(f"restored {step}, skipped {len(keeper.skipped)}, newest {newest}")
        keeper.close()


if __name__ == "__main__":
    programs: dict[str, Any] = {"save": save, "stuck": stuck, "restore": restore}
    programs[sys.argv[3]](*sys.argv[1:3], *sys.argv[4:])
