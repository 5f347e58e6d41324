"""What a recovery costs the MPI library in memory, without this package.

    closeranks run --faults -n 120 -- docs/limits/recoveries.py [free]

Six ranks work, the others wait.  In each round the last of the six is killed; all revoke
and shrink, and the next one who waits takes the place.  Rank 0 prints by how much it grows,
each time a twelfth of the ranks has died.
`free` frees what was revoked, as no program may whose messages may be under way: see freed.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
from mpi4py import MPI

MEMBERS = 6


def private_kib() -> int:
    """Memory that this process shares with no other one."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def work(comm: MPI.Intracomm) -> None:
    """Send to both neighbours, long and short; leave when one has died."""
    given, taken = np.ones(20_000), np.empty(20_000)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(20):
        comm.Sendrecv(given, after, 0, taken, before, 0)
        comm.Barrier()


def wait(whole: MPI.Intracomm) -> None:
    """Do nothing until one of those who work has died."""
    try:
        while not whole.Is_revoked():
            whole.Iprobe()
            time.sleep(0.01)
    except MPI.Exception:
        whole.Revoke()


def lose_one(whole: MPI.Intracomm, members: MPI.Intracomm) -> None:
    """Work until the last of those who work has died."""
    try:
        work(members)
        if members.rank == MEMBERS - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            work(members)
    except MPI.Exception:
        members.Revoke()
        whole.Revoke()


def main() -> NoReturn:
    """Lose one rank after the other."""
    whole, lost, before = MPI.COMM_WORLD.Dup(), 0, 0
    rounds = max(1, whole.size // 12)
    while True:
        whole.Set_errhandler(MPI.ERRORS_RETURN)
        members = whole.Split(int(whole.rank >= MEMBERS))
        members.Set_errhandler(MPI.ERRORS_RETURN)
        whole.Barrier()
        if whole.rank == 0 and lost % rounds == 0:
            now = private_kib()
            each = f"{(now - before) / rounds:.0f} KiB more for each" if before else "now begin"
            print(f"{lost} ranks lost, {each}", flush=True)  # noqa: T201
            before = now
        if whole.size == MEMBERS:
            time.sleep(0.5)  # all have left the barrier
            os.kill(os.getpid(), signal.SIGKILL)
        if whole.rank < MEMBERS:
            lose_one(whole, members)
        else:
            wait(whole)
        shrunk, lost = whole.Shrink(), lost + 1
        if "free" in sys.argv:
            members.Free()
            whole.Free()
        whole = shrunk


main()
