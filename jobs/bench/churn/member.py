"""The program of a process of an episode; `campaign` starts it.

Its arguments are the folder for its log, the seed, the members and the spares.
It adds its part until the schedule is over, and is killed or stopped when that
says so.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil

import closeranks
from closeranks.jobs.bench.churn.model import ChurnEvent, Episode, episode, met, victims
from closeranks.jobs.bench.churn.record import UNWRITTEN, Record, line, part, read_sums

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

#: A step that takes longer is a hang.
HANG_S: Final = 45.0
#: Lets a process write where it is, wherever that is.
WHERE: Final = signal.SIGUSR2
_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def main(folder: Path, plan: Episode) -> None:
    """Take part in an episode, from its beginning or from later on.

    Parameters
    ----------
    folder : Path
        Takes the log.
    plan : Episode
        The schedule.
    """
    mode = "replace" if plan.spares else "shrink"
    with closeranks.init(on_failure=mode, recruits=False) as comm:
        state, is_new = {"step": 0}, comm.joined
        with (folder / f"{os.getpid()}.log").open("a", encoding="utf-8") as log:
            while state["step"] < plan.steps:
                faulthandler.dump_traceback_later(HANG_S)
                record = _step(comm, state, plan, spared=is_new)
                is_new = False
                log.write(line(record))
                log.flush()
                state["step"] = record.step + 1
    faulthandler.cancel_dump_traceback_later()


def _step(comm: Communicator, state: dict[str, int], plan: Episode, *, spared: bool) -> Record:
    """Add the parts of all members; repeated until they have agreed.

    The event is known before the first attempt.  A process that misses that
    attempt, because another has died already, is met all the same.
    """
    began_s = time.monotonic()
    event = None if spared else met(plan.events, state["step"])
    struck = event is not None and _strikes(comm, event, _waiting(comm, plan))
    for attempt in comm.attempts():
        with attempt:
            comm.synchronize(state)
            given = part(comm.seat, state["step"], comm.epoch)
            taken = np.full_like(given, UNWRITTEN)
            comm.Allreduce(given, taken)
    if struck:
        time.sleep(HANG_S)
    own = psutil.Process()
    return Record(
        str(os.getpid()),
        state["step"],
        comm.epoch,
        comm.seat,
        comm.alive,
        _waiting(comm, plan),
        *read_sums(taken),
        own.memory_info().rss >> 10,
        own.num_fds(),
        time.monotonic() - began_s,
    )


def _waiting(comm: Communicator, plan: Episode) -> int:
    """Count the spares that have not taken a seat."""
    return plan.spares - sum(comm.incarnation(seat) for seat in range(plan.members))


def _strikes(comm: Communicator, event: ChurnEvent, waiting: int) -> bool:
    """Be killed or stopped a moment from now, if it is this seat's turn."""
    if comm.seat not in victims(event, comm.alive, waiting):
        return False
    number = _SIGNALS[event.kind]
    threading.Timer(event.delay_s, os.kill, (os.getpid(), number)).start()
    return True


if __name__ == "__main__":
    faulthandler.register(WHERE, (Path(sys.argv[1]) / f"{os.getpid()}.where").open("w"))
    main(Path(sys.argv[1]), episode(*map(int, sys.argv[2:5])))
