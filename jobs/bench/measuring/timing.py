"""Times of calls that all ranks make together.

`Effort` says how often to call, in how many blocks, and whether in batches.
`Timing` has the times of one measurement, and what a row says of them.  Both
communicate with nobody.

All functions that take a communicator are collective.  Every rank calls them
with equal numbers, so that all ranks take the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI


SHORT_S = 20e-6
"""Below this a call is timed in batches: a barrier would cost as much."""
BATCH = 1000
BLOCKS = 11
"""Alternating blocks a side, and batches, at least."""
LARGE_BYTES = 8192
"""Above this fewer calls by default, as in OMB."""
STEADY_S = 1.0
"""Seconds a side that a comparison takes, if it may: ranks that share cores differ
by several hundredths from one tenth of a second to the next."""
LEAST_IN_BLOCK = 20


@dataclass(frozen=True)
class RepetitionSchedule:
    """The timed part of one size.

    Parameters
    ----------
    blocks : int
        Blocks a side; the sides take turns.
    calls : int
        Calls in a block.
    batched : bool
        Whether a block is one sample, without barriers inside.
    """

    blocks: int
    calls: int
    batched: bool


@dataclass(frozen=True)
class Effort:
    """How much time a size may take.

    Parameters
    ----------
    iterations, warmup : int, optional
        Calls a side; None chooses as OMB does and keeps to `budget_s`.
    budget_s : float
        Seconds for the timed part of all sides together; the least number
        of samples is taken even if it takes longer.
    """

    iterations: int | None = None
    warmup: int | None = None
    budget_s: float = 3.0

    def schedule(
        self,
        estimates_s: Sequence[float],
        nbytes: int,
        *,
        batched: bool | None = None,
        least: int = 3,
    ) -> RepetitionSchedule:
        """Plan the timed part.

        Parameters
        ----------
        estimates_s : sequence of float
            Seconds per call of each side.
        nbytes : int
            Size of the operation.
        batched : bool, optional
            Batches or single calls; None decides by the fastest side.
        least : int
            Samples to take whatever they cost, with a single side.

        Returns
        -------
        RepetitionSchedule
            At least `BLOCKS` blocks if there are several sides or batches.
        """
        together = max(sum(estimates_s), 1e-9)
        if batched is None:
            batched = min(estimates_s) < SHORT_S
        affordable = int(self.budget_s / together)
        if batched:
            blocks = min(affordable // BATCH, 100)
            if self.iterations is not None:
                blocks = math.ceil(self.iterations / BATCH)
            return RepetitionSchedule(max(blocks, BLOCKS), BATCH, True)
        sides = len(estimates_s)
        blocks = BLOCKS if sides > 1 else 1
        if self.iterations is not None:
            return RepetitionSchedule(blocks, math.ceil(self.iterations / blocks), False)
        wanted = 1000 if nbytes <= LARGE_BYTES else 100
        if sides > 1:
            wanted = max(wanted, int(STEADY_S * sides / together))
        calls = min(wanted, max(affordable, least))
        blocks = max(blocks, calls // LEAST_IN_BLOCK // sides * sides if sides > 1 else 0)
        return RepetitionSchedule(blocks, math.ceil(calls / blocks), False)

    def warmups(self, estimate_s: float, nbytes: int) -> int:
        """Count the calls before the timed part.

        Parameters
        ----------
        estimate_s : float
            Seconds per call.
        nbytes : int
            Size of the operation.

        Returns
        -------
        int
            100, or 10 above 8 KiB, cut to a tenth of the budget.
        """
        if self.warmup is not None:
            return self.warmup
        wanted = 100 if nbytes <= LARGE_BYTES else 10
        return min(wanted, int(0.1 * self.budget_s / max(estimate_s, 1e-9)))


#: Keys of a row that is about no transfer.
NO_BANDWIDTH: Final = {"algbw_GBps": None, "busbw_GBps": None}


@dataclass(frozen=True, eq=False)
class Timing:
    """Times of one side, the same on every rank.

    Parameters
    ----------
    seconds : ndarray, shape (samples,), dtype float64
        Per call, maximum over the ranks; a sample is one call, or the mean
        of one batch.
    rank_mean_s : float
        Mean over ranks of each rank's own mean, OMB's average.
    calls : int
        Timed calls behind all samples.
    batched : bool
        Whether a sample is a batch of calls without a barrier inside.
    """

    seconds: npt.NDArray[np.float64]
    rank_mean_s: float
    calls: int
    batched: bool

    @property
    def p50_us(self) -> float:
        """Median in microseconds."""
        return float(np.median(self.seconds)) * 1e6

    def scaled(self, factor: float) -> Timing:
        """Return the same samples in another unit of work."""
        return Timing(self.seconds * factor, self.rank_mean_s * factor, self.calls, self.batched)

    def columns(self) -> dict[str, float]:
        """Return the row's times, in microseconds."""
        us = self.seconds * 1e6
        return {
            "time_us_min": float(us.min()),
            "time_us_p50": float(np.median(us)),
            "time_us_mean": float(us.mean()),
            "time_us_p99": float(np.percentile(us, 99)),
            "time_us_max": float(us.max()),
            "time_us_rank_mean": self.rank_mean_s * 1e6,
        }


def bandwidth(nbytes: int, p50_us: float, factor: float) -> dict[str, float]:
    """Return nccl-tests' two bandwidths, from the median time.

    Parameters
    ----------
    nbytes : int
        Size of the operation.
    p50_us : float
        Median time in microseconds.
    factor : float
        Bus bandwidth over algorithm bandwidth.

    Returns
    -------
    dict
        ``algbw_GBps`` and ``busbw_GBps``, 1 GB = 1e9 bytes.
    """
    algbw = nbytes / p50_us * 1e-3 if p50_us > 0 else 0.0
    return {"algbw_GBps": algbw, "busbw_GBps": algbw * factor}


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


def clock(
    comm: MPI.Intracomm, sides: Mapping[str, Call], schedule: RepetitionSchedule
) -> dict[str, Timing]:
    """Time the sides in alternating blocks.

    The order of the sides turns from block to block, so that none always
    follows the same neighbour.

    Parameters
    ----------
    comm : MPI.Intracomm
        Plain communicator of all ranks, for barriers and maxima.
    sides : mapping of str to callable
        Calls to time, each collective over the ranks.
    schedule : RepetitionSchedule
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
        Call to time.
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
        Call to time.
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
