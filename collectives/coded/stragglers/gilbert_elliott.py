"""Workers that become slow, and fast again, by chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import number
from closeranks.comms import argument


class GilbertElliott:
    """A chain of two states for each worker, fast and slow.

    Gilbert, "Capacity of a burst-noise channel", 1960; Elliott, 1963.  The first
    round is drawn from the stationary distribution, so no round is special.

    Parameters
    ----------
    enter : float
        Probability to be slow in a round after a fast one.
    stay : float
        Probability to be slow in a round after a slow one.
    slowdown : float
        The factor of a slow worker, at least 1.
    seed : int
        Of the random numbers.
    jitter : float, optional
        All factors are multiplied by 1 to ``1 + jitter``, drawn uniformly.

    Raises
    ------
    UsageError
        If a probability is outside of 0 to 1, or another number is not as said.

    Examples
    --------
    >>> GilbertElliott(0.1, 0.3, 8, seed=1).factors(2, 8)
    array([[1., 1., 1., 1., 8., 1., 1., 1.],
           [1., 1., 1., 1., 1., 8., 1., 1.]])
    """

    def __init__(
        self, enter: float, stay: float, slowdown: float, seed: int, jitter: float = 0
    ) -> None:
        where = "GilbertElliott"
        self.enter = number(where, "enter", enter, most=1)
        self.stay = number(where, "stay", stay, most=1)
        self.slowdown = number(where, "slowdown", slowdown, least=1)
        self.seed = argument.whole(where, "seed", seed)
        self.jitter = number(where, "jitter", jitter)

    def factors(self, rounds: int, n: int) -> NDArray[np.float64]:
        """Give how slow workers are.

        Parameters
        ----------
        rounds, n : int
            Rounds and workers.

        Returns
        -------
        ndarray, shape (rounds, n), dtype float64
            The same for the same seed; the first rounds of more are the same, too.
        """
        rounds = argument.whole("factors", "rounds", rounds, least=1)
        n = argument.whole("factors", "n", n, least=1)
        states, jitters = np.random.SeedSequence(self.seed).spawn(2)
        drawn = np.random.default_rng(states).random((rounds, n))
        slow = np.empty((rounds, n), bool)
        slow[0] = drawn[0] < self._stationary()
        for round in range(1, rounds):
            slow[round] = drawn[round] < np.where(slow[round - 1], self.stay, self.enter)
        found = np.where(slow, self.slowdown, 1.0)
        if self.jitter:
            found *= 1 + self.jitter * np.random.default_rng(jitters).random((rounds, n))
        return found

    def _stationary(self) -> float:
        """Give the share of rounds in which a worker is slow."""
        leave = 1 - self.stay
        return self.enter / (self.enter + leave) if self.enter + leave else 0.0
