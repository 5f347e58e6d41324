"""What else ends a job, or does not: ``beyond.py CASE``.

"long": seat 2 computes for longer than any silence is borne.  "abort", "exit": it
ends in a way that Open MPI's launcher tells nobody.  "loop": all go on until somebody
ends them.  "early": it ends as it should, and the others go on without it.
"alone": nothing happens.  "children": seat 2 is killed, and what
it has started has its standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

import closeranks as cr


def _leave_a_child() -> None:
    """Die, but not what was started, which has the standard output."""
    with subprocess.Popen(["sleep", "300.5"]):
        os.kill(os.getpid(), signal.SIGKILL)


ENDS: dict[str, Callable[[], object]] = {
    "abort": MPI.COMM_WORLD.Abort,
    "exit": partial(os._exit, 0),
    "children": _leave_a_child,
}


def main(case: str) -> None:
    """Meet it in the tenth step."""
    with cr.init(on_failure="shrink") as comm:
        given, total = np.full(5000, 1 << comm.seat), np.empty(5000, int)
        step = 0
        while case == "loop" or step < 20:
            for attempt in comm.attempts():
                with attempt:
                    if step == 10 and case == "long" and comm.seat == 2:
                        _compute(2.0)
                    if step == 10 and case in ENDS and comm.seat == 2:
                        ENDS[case]()
                    comm.Allreduce(given, total)
            assert (total == sum(1 << seat for seat in comm.alive)).all()
            step += 1
            if step == 10 and comm.rank == 0:
                sys.stdout.write("ten steps\n")
                sys.stdout.flush()
        if comm.rank == 0:
            sys.stdout.write(f"{comm.size} ranks, epoch {comm.epoch}\n")
    if case == "early":
        _go_on_without(2)


def _go_on_without(rank: int) -> None:
    """Sum among the others for longer than a death would take to be told."""
    world = MPI.COMM_WORLD
    others = world.Split(int(world.rank == rank))
    if world.rank == rank:
        return
    end_s = time.monotonic() + 1.0
    while others.allreduce(time.monotonic() < end_s, MPI.LAND):
        world.Iprobe()
    assert world.Get_failed().size == 0
    if others.rank == 0:
        sys.stdout.write("nobody is missed\n")


def _compute(seconds: float) -> None:
    """Keep the core and Python's lock."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(10_000))


if __name__ == "__main__":
    main(sys.argv[1])
