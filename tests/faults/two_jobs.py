"""A job that saves and waits to be let go, for jobs that are started beside it.

    two_jobs.py NAME [MORE]

TWO_JOBS in the environment, which is no part of the command, is JSON: ``who`` it
is, a ``folder`` for words to the test, and ``set``, variables that it gives itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.errors import CheckpointError

TOLD = json.loads(os.environ["TWO_JOBS"])
WHO, FOLDER = TOLD["who"], Path(TOLD["folder"])
#: Seconds after which nobody lets a job go any more.
PATIENCE_S = 40


def say(text: str) -> None:
    """Tell the test, in one piece."""
    os.write(1, f"{WHO}: {text}\n".encode())


def work(comm: cr.Communicator) -> None:
    """Restore, save, wait, and look whether all is still one's own."""
    keeper = Checkpointer(comm, name=sys.argv[1], group=2)
    try:
        found = keeper.restore()
    except CheckpointError as error:
        keeper.close()  # which removes nothing
        say(f"refused, {error}")
        return
    say("nothing" if found is None else f"restored {found[0]} of {found[1]['who']}")
    step = found[0] + 1 if found else 1
    state = {"who": WHO, "own": PerRank(np.full(3000, ord(WHO[0]) + comm.rank))}
    keeper.save(step, state).committed.wait(30)
    (FOLDER / f"{WHO}-{comm.rank}").write_text(str(os.getpid()))
    end = time.monotonic() + PATIENCE_S
    while not (FOLDER / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)
    comm.Barrier()
    kept = keeper.restore()
    assert kept is not None
    assert kept[0] == step
    assert kept[1]["who"] == WHO
    np.testing.assert_array_equal(kept[1]["own"], state["own"].value)
    comm.Barrier()
    say(f"has step {step}")
    keeper.close(keep="keep" in TOLD)


if __name__ == "__main__":
    os.environ.update(TOLD.get("set", {}))
    with cr.init() as world:
        work(world)
