"""A program's own end of MPI: ``ending.py HOW``.

HOW: "handler", its exit handler makes the first blocking call; "finalize", it calls
MPI.Finalize while persistent operations are there.
"""

from __future__ import annotations

import atexit
import sys
import time

import numpy as np
from mpi4py import MPI

import closeranks as cr

COMM = cr.init()
X, Y = np.ones(10), np.zeros(10)


def last() -> None:
    """Reduce as the interpreter exits."""
    COMM.Allreduce(X, Y)
    sys.stdout.write(f"sum {Y[0]:g}\n")
    sys.stdout.flush()


if sys.argv[1] == "handler":
    atexit.register(last)
else:
    COMM.Iallreduce(X, Y).Wait()
    operation = COMM.Allreduce_init(X, Y)
    operation.Start()
    operation.Wait()
    MPI.Finalize()
    time.sleep(0.2)  # a thread of ours would look for starts now
    sys.stdout.write(f"sum {Y[0]:g}\n")
