"""Workers that are slow in some rounds of a window, whichever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import number
from closeranks.collectives.coded.stragglers.random_pattern import random_factors, read_pattern
from closeranks.comms import argument
from closeranks.errors import UsageError


class Arbitrary:
    """The (N, W, lam)-arbitrary model.

    In every W consecutive rounds at most lam workers are late, each of them in
    at most N rounds.

    Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding for Straggler
    Mitigation", ICLR 2023.  A (B, W, lam)-bursty worker is late in at most B of
    any W - 1 + B rounds.

    Parameters
    ----------
    N, W : int
        Rounds; N <= W.
    lam : int
        Workers.
    seed : int, optional
        Of the pattern that `factors` draws.
    slowdown : float, optional
        The factor of a late worker; that of all others is 1.

    Raises
    ------
    UsageError
        If the numbers are others.
    """

    def __init__(self, N: int, W: int, lam: int, *, seed: int = 0, slowdown: float = 3.0) -> None:
        self.W = argument.whole("Arbitrary", "W", W, least=1)
        self.N = argument.whole("Arbitrary", "N", N, below=self.W + 1)
        self.lam = argument.whole("Arbitrary", "lam", lam)
        self.seed = argument.whole("Arbitrary", "seed", seed)
        self.slowdown = number("Arbitrary", "slowdown", slowdown, least=1)

    def __repr__(self) -> str:
        return f"Arbitrary(N={self.N}, W={self.W}, lam={self.lam})"

    def admits(self, pattern: Any) -> bool:
        """Tell whether a pattern is one of the model's.

        Parameters
        ----------
        pattern : array_like of bool, shape (rounds, n)
            Round, worker -> whether it is late.

        Returns
        -------
        bool
            Whether every window of W rounds is as it should be; windows that
            reach beyond the pattern count with the rounds that there are.
        """
        late = read_pattern("Arbitrary.admits", pattern)
        counts = sliding_window_view(late, min(self.W, len(late)), axis=0).sum(axis=-1)
        distinct = (counts > 0).sum(axis=1)
        return bool((counts <= self.N).all() and (distinct <= self.lam).all())

    def factors(self, rounds: int, n: int) -> NDArray[np.float64]:
        """Draw a pattern of the model, and give its factors.

        Parameters
        ----------
        rounds, n : int
            Rounds and workers.

        Returns
        -------
        ndarray, shape (rounds, n), dtype float64
            The same for the same seed.

        Raises
        ------
        UsageError
            If lam is above n.
        """
        if self.lam > n:
            raise UsageError("Arbitrary", f"lam is {self.lam}", f"give at most n = {n}")
        return random_factors(rounds, n, self.W, self.lam, self._may, self.seed, self.slowdown)

    def _may(self, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which workers may be late after up to W - 1 rounds."""
        return np.asarray(before.sum(axis=0) < self.N)
