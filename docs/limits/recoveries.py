"""What a recovery costs the MPI library in memory, without this package.

    closeranks run --faults -n 12 -- docs/limits/recoveries.py [free]

In each round the last rank is killed; the others revoke, shrink, and make what a world
needs: a duplicate, and the communicator of the node.  Rank 0 prints by how much it has
grown.  `free` frees the revoked ones, as no program may whose messages may be under way.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI


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


def main() -> None:
    """Lose rank after rank."""
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    start, lost = 0, 0
    while comm.size > 3:
        try:
            work(comm)
            if comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                work(comm)
        except MPI.Exception:
            comm.Revoke()
        shrunk = comm.Shrink()
        if "free" in sys.argv:
            comm.Free()
        comm = shrunk
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        for made in (comm.Dup(), comm.Split(0)):
            made.Barrier()
            if "free" in sys.argv:
                made.Free()
        lost += 1
        start = start or (private_kib() if lost == 3 else 0)
    if comm.rank == 0:
        each = (private_kib() - start) / (lost - 3)
        print(f"{lost} ranks lost, {each:.0f} KiB more a recovery", flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)


main()
