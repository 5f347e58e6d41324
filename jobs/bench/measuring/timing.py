"""Timing calls on all ranks together.

Every function here is collective: called by every rank of the communicator
with equal numbers, so that all ranks take the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from closeranks.jobs.bench.measuring.repetitions import Schedule
from closeranks.jobs.bench.measuring.time_distribution import Timing

if TYPE_CHECKING:
    from mpi4py import MPI

Call = Callable[[], object]

_LONG_S = 0.2
"""A first call that takes longer is estimate enough."""
_ENOUGH_S = 5e-3


def estimate(comm: MPI.Intracomm, call: Call) -> float:
    """Find out roughly how long a call takes; warms up on the way.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks.
    call : callable
        The operation, collective over `comm`.

    Returns
    -------
    float
        Seconds, maximum over the ranks; the same on every rank.
    """
    calls, seconds = 1, together(comm, call, 1)
    if seconds > _LONG_S:
        return seconds
    calls, seconds = 2, together(comm, call, 2)
    while seconds < _ENOUGH_S and calls < 1000:
        calls *= 8
        seconds = together(comm, call, calls)
    return seconds / calls


def clock(comm: MPI.Intracomm, sides: Mapping[str, Call], schedule: Schedule) -> dict[str, Timing]:
    """Time the sides in alternating blocks.

    The order of the sides turns from block to block, so that none always
    follows the same neighbour.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks, for barriers and maxima.
    sides : mapping of str to callable
        What to time, each collective over the ranks.
    schedule : Schedule
        How often.

    Returns
    -------
    dict of str to Timing
        By side; the same on every rank.
    """
    names = list(sides)
    samples: dict[str, list[float]] = {name: [] for name in names}
    block = batch if schedule.batched else _singles
    for i in range(schedule.blocks):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name] += block(comm, sides[name], schedule.calls)
    calls = schedule.blocks * schedule.calls
    return {name: agree(comm, samples[name], calls, schedule.batched) for name in names}


def agree(comm: MPI.Intracomm, samples: list[float], calls: int, batched: bool) -> Timing:
    """Take the maximum of each sample over the ranks.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks.
    samples : list of float
        Seconds per call on this rank, equally many on every rank.
    calls : int
        Calls behind them.
    batched : bool
        Whether a sample is a batch.

    Returns
    -------
    Timing
        The same on every rank.
    """
    from mpi4py import MPI

    slowest = np.array(samples)
    mean = np.array([slowest.mean()])
    comm.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
    comm.Allreduce(MPI.IN_PLACE, mean, op=MPI.SUM)
    return Timing(slowest, float(mean[0]) / comm.Get_size(), calls, batched)


def batch(comm: MPI.Intracomm, call: Call, calls: int) -> list[float]:
    """Time many calls as one sample.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks, for a barrier before.
    call : callable
        What to time.
    calls : int
        How often.

    Returns
    -------
    list of float
        Seconds per call on this rank, one number.
    """
    comm.Barrier()
    start = perf_counter()
    for _ in range(calls):
        call()
    return [(perf_counter() - start) / calls]


def together(comm: MPI.Intracomm, call: Call, calls: int) -> float:
    """Time some calls in a row; the slowest rank's time for all of them.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks.
    call : callable
        What to time.
    calls : int
        How often.

    Returns
    -------
    float
        Seconds, the same on every rank.
    """
    from mpi4py import MPI

    seconds = np.array([batch(comm, call, calls)[0] * calls])
    comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
    return float(seconds[0])


def _singles(comm: MPI.Intracomm, call: Call, calls: int) -> list[float]:
    """Time calls one by one, with a barrier outside each."""
    samples = []
    for _ in range(calls):
        comm.Barrier()
        start = perf_counter()
        call()
        samples.append(perf_counter() - start)
    return samples
