"""Factors from a trace that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import SMALLEST
from closeranks.collectives.coded.stragglers.trace_file import bad_trace, file_path, read_trace
from closeranks.comms import argument

#: A rank that took no time at all has this factor: factors are above 0.
_LEAST: Final = 1e-6


class Trace:
    """How slow ranks were, read from the file of a `Recorder`.

    Local and pure: the file is read once.

    Parameters
    ----------
    path : str or Path
        The file.

    Attributes
    ----------
    path : Path
        As given.
    n, rounds : int
        Ranks, and rounds that were recorded.
    micro : int
        Micro-batches of a round; 0 if unknown.
    hosts : tuple of str
        Rank -> its host; empty if unknown.
    compute_s : ndarray, shape (rounds, n)
        Seconds that a rank computed in a round.
    usual_s : float
        Seconds of a rank in a usual round: the median of all.
    overhead_s : float
        Seconds of a round beside the computing of its slowest rank, such as
        messages: the median of the rounds for which they are known, else 0.

    Raises
    ------
    UsageError
        With the path: if it is no trace, or a newer one, or short, or has a
        number that is NaN, negative or above 1e30, or most are 0.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = file_path("trace", path)
        found = read_trace(self.path)
        self.compute_s, self.micro, self.hosts = found.compute_s, found.micro, found.hosts
        self.rounds, self.n = self.compute_s.shape
        self.usual_s = float(np.median(self.compute_s))
        if self.usual_s < SMALLEST:
            raise bad_trace(self.path, "most ranks computed for no time")
        known = (found.step_s > 0).all(axis=1)
        steps = found.step_s[known].mean(axis=1) - self.compute_s[known].max(axis=1)
        self.overhead_s = max(0.0, float(np.median(steps))) if known.any() else 0.0

    def factors(self, rounds: int, n: int) -> NDArray[np.float64]:
        """Give how slow ranks were.

        Parameters
        ----------
        rounds : int
            The first ones; as many as were recorded, at most.
        n : int
            Ranks, as many as were recorded.

        Returns
        -------
        ndarray, shape (rounds, n), dtype float64
            Seconds as multiples of ``usual_s``.

        Raises
        ------
        UsageError
            With the path: if it has fewer rounds, or another number of ranks.
        """
        rounds = argument.whole("Trace.factors", "rounds", rounds, least=1)
        if n != self.n:
            raise bad_trace(self.path, f"it is of {self.n} ranks, not {n}")
        if rounds > self.rounds:
            raise bad_trace(self.path, f"it is short: {self.rounds} rounds, not {rounds}")
        return np.maximum(self.compute_s[:rounds] / self.usual_s, _LEAST)
