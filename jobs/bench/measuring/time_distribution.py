"""The times of one measurement, and what a row says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

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
