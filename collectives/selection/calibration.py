"""Numbers the chooser needs, measured at init within a budget and agreed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.selection.chooser import NativeModel
from closeranks.comms.wait import crowding

if TYPE_CHECKING:
    from mpi4py import MPI

#: Time of the Python interpreter for one step of a plan with a core of its own.
STEP_S = 6e-6
#: Sizes of the library's all-reduce that are timed, bytes.
SMALL, LARGE = 8, 16384


def calibrate(comm: MPI.Intracomm) -> tuple[NativeModel, Speed]:
    """Time a few of the library's all-reduces, a copy and a reduction.

    Called by every rank of ``comm``, whose world is open; about 10 ms on a slow
    network.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator whose library is timed.

    Returns
    -------
    native : NativeModel
        The same on every rank.
    speed : Speed
        The same on every rank: the slowest rank's.
    """
    from mpi4py import MPI

    measured = np.array(
        [
            _native_s(comm, SMALL, calls=4),
            _native_s(comm, LARGE, calls=3),
            *_memory_s(),
            STEP_S * crowding(),
        ]
    )
    comm.Allreduce(MPI.IN_PLACE, measured, op=MPI.MAX)
    small_s, large_s, copy_s, reduce_s, step_s = measured.tolist()
    slope = max(large_s - small_s, 0.0) / (LARGE - SMALL)
    return NativeModel(small_s, slope), Speed(step_s, reduce_s, copy_s)


def _native_s(comm: MPI.Intracomm, nbytes: int, *, calls: int) -> float:
    """Best time of an all-reduce, after one that warms up."""
    from mpi4py import MPI

    x, y = np.zeros(nbytes, dtype=np.uint8), np.empty(nbytes, dtype=np.uint8)
    best = float("inf")
    for call in range(calls):
        started = time.perf_counter()
        comm.Allreduce(x, y, op=MPI.BOR)
        if call:
            best = min(best, time.perf_counter() - started)
    return best


def _memory_s() -> tuple[float, float]:
    """Seconds a byte to copy and to add, on 256 KiB."""
    x, y = np.zeros(1 << 15), np.ones(1 << 15)
    return _per_byte(lambda: np.copyto(y, x)), _per_byte(lambda: np.add(x, y, out=y))


def _per_byte(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best / (1 << 18)
