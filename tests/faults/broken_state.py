"""A state that is on its way does not arrive: who waits for it hears why.

    closeranks run [--faults] -n 3 -- broken_state.py WAY

WAY is "late" (who gets it takes longer than calls may) or "error" (who gives it fails).
"""

from __future__ import annotations

import faulthandler
import sys
import time
import warnings
from typing import Any

import numpy as np

import closeranks as cr
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.replicated import synchronization
from closeranks.comms.wait import Deadline, wait

WATCHDOG_S, PATIENCE_S, LENGTH = 40, 0.5, 1 << 20


def pauses(made: Any) -> Any:
    """Take longer than calls may for what has come."""

    def put(*given: Any) -> Any:
        time.sleep(3 * PATIENCE_S)
        return made(*given)

    return put


def fails(data: Any) -> Any:
    """Have no room for a copy."""
    raise MemoryError(type(data).__name__)


def main() -> None:
    """Say what has ended the call."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    way = sys.argv[1]
    comm = cr.init(timeout_s=PATIENCE_S if way == "late" else None)
    state = {name: np.full(LENGTH, float(comm.rank == 2)) for name in "abc"}
    used: Any = synchronization
    if way == "late" and comm.rank == 2:
        used.Placing.put = pauses(used.Placing.put)
    if way == "error" and comm.rank == 0:
        used.to_bytes = fails
    warnings.simplefilter("ignore")
    said = "nothing"
    try:
        comm.synchronize(state)
    except Exception as error:
        said = f"{type(error).__name__} {error}"
    print(f"rank {comm.rank}: {said}", flush=True)  # noqa: T201 - what the test reads
    ends = Deadline(4 * PATIENCE_S)  # what is on its way still is to arrive before the end
    wait(lambda: False, progress=engine().progress, deadline=ends)
    comm.abandon()


main()
