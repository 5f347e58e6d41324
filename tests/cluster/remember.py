"""A program that restores, and saves until it is ended.

    remember.py FOLDER work|look

Rank 0 says from which step it goes on, and on which nodes the ranks are; a file
``ready`` in the folder says that three more steps are committed.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, Shard

ROWS = 16


def state_of(rank: int, size: int, step: int) -> dict[str, Any]:
    """What a rank holds: alike, of its own, and its part of a whole."""
    rows = ROWS // size
    return {
        "alike": np.arange(9999.0) + step,
        "own": np.full(1000 + 977 * rank, rank + step),
        "part": Shard(np.full((rows, 500), rank + step), (ROWS, 500), (rows * rank, 0)),
    }


def check(state: dict[str, Any], rank: int, size: int, step: int) -> None:
    """Compare with what was saved, bit for bit."""
    wanted = state_of(rank, size, step)
    for key in ("alike", "own"):
        np.testing.assert_array_equal(state[key], wanted[key])
    assert state["part"].offset == wanted["part"].offset
    np.testing.assert_array_equal(state["part"].array, wanted["part"].array)


def main(folder: Path, works: bool) -> None:
    """Restore; then save until somebody ends this."""
    with cr.init() as comm:
        keeper = Checkpointer(comm, name="remember")
        step, state = keeper.restore() or (0, None)
        if state is not None:
            check(state, comm.rank, comm.size, step)
        hosts = comm.allgather(socket.gethostname())
        if comm.rank == 0:
            sys.stdout.write(f"from {step} on {' '.join(hosts)}\n")
            sys.stdout.flush()
        last = step + 3
        while works:
            step += 1
            keeper.save(step, state_of(comm.rank, comm.size, step)).committed.wait(30)
            if step == last and comm.rank == 0:
                (folder / "ready").touch()
            time.sleep(0.01)
        keeper.close(keep=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "work")
