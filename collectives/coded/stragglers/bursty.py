"""Workers that are slow for a few rounds, then not for a while."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import number
from closeranks.collectives.coded.stragglers.random_pattern import random_factors, read_pattern
from closeranks.comms import argument
from closeranks.errors import UsageError


class Bursty:
    """The (B, W, lam)-bursty model.

    In every W consecutive rounds at most lam workers are late; and for each of
    them, all its late rounds among these lie within B consecutive ones.

    Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding for Straggler
    Mitigation", ICLR 2023.  Departure: the second condition is tested by pairs,
    which is the same: two late rounds of a worker are less than B apart, or W or
    more.  The paper counts patterns; `factors` draws one of them at random.

    Parameters
    ----------
    B, W : int
        Rounds; 1 <= B <= W.
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

    def __init__(self, B: int, W: int, lam: int, *, seed: int = 0, slowdown: float = 3.0) -> None:
        self.W = argument.whole("Bursty", "W", W, least=1)
        self.B = argument.whole("Bursty", "B", B, least=1, below=self.W + 1)
        self.lam = argument.whole("Bursty", "lam", lam)
        self.seed = argument.whole("Bursty", "seed", seed)
        self.slowdown = number("Bursty", "slowdown", slowdown, least=1)

    def __repr__(self) -> str:
        return f"Bursty(B={self.B}, W={self.W}, lam={self.lam})"

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
        late = read_pattern("Bursty.admits", pattern)
        if any((late[apart:] & late[:-apart]).any() for apart in range(self.B, self.W)):
            return False
        width = min(self.W, len(late))
        distinct = sliding_window_view(late, width, axis=0).any(axis=-1).sum(axis=1)
        return bool((distinct <= self.lam).all())

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
            raise UsageError("Bursty", f"lam is {self.lam}", f"give at most n = {n}")
        return random_factors(rounds, n, self.W, self.lam, self._may, self.seed, self.slowdown)

    def _may(self, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell which workers may be late after up to W - 1 rounds."""
        far = before[: max(0, len(before) - self.B + 1)]
        return np.logical_not(far.any(axis=0))
