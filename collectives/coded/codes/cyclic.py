"""Cyclic codes: worker ``i`` computes parts ``i`` to ``i + s``, modulo ``n``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.cyclic_algebra import has_flat_weights
from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.comms import argument
from closeranks.errors import UsageError


class CyclicRepetition(GradientCode):
    """The cyclic code of random coefficients.

    A matrix ``H`` of shape (s, n) is drawn from the normal distribution; its last
    column makes the rows sum to 0.  Row ``i`` of the code is the vector with
    ``H @ row == 0`` whose entries are 1 at ``i`` and 0 outside of ``i`` to
    ``i + s``.  The weights are those of least squares.

    The sum can be had from ``n - s`` workers, and from no set of fewer.  The rows
    lie in the null space of ``H``, which has ``n - s`` dimensions and holds the
    vector of ones, and any ``n - s`` of them span it.  Fewer rows span less: with
    probability 1 that does not hold the ones.  For write row ``i``, scaled, as
    ``1 + x_i G``, where ones and ``G`` span the null space.  Then ``x_i`` is the
    common point of ``n - s - 1`` of ``n`` random hyperplanes, and the ones are a
    combination of some rows only if the flat through their points meets the
    origin.  A random shift of all hyperplanes shifts this flat, which is not the
    whole space.  So `decodable` counts, and no rounding error decides.

    The weights grow with ``n`` and ``s``: see `noise_gain`.  A residual of 1e-8 in
    float64 is one of 0.6 in float32 at ``n = 256``, ``s = 15``.

    Source: Tandon, Lei, Dimakis and Karampatziakis, "Gradient coding", ICML 2017,
    algorithm 2.  Departure: none.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        Any ``s`` workers may be late; 0 to ``n - 1``.
    seed : int
        Of NumPy's generator PCG64: the same code on all ranks.

    Raises
    ------
    UsageError
        If a number is out of bounds.
    """

    def __init__(self, n: int, s: int, seed: int = 0) -> None:
        n = argument.whole("CyclicRepetition", "n", n, least=1)
        self.s = argument.whole("CyclicRepetition", "s", s, below=n)
        self.seed = argument.whole("CyclicRepetition", "seed", seed)
        super().__init__(_random_rows(n, self.s, self.seed), exact=True)

    def for_workers(self, n: int) -> CyclicRepetition:
        """Give the code for another number of workers, of the same seed."""
        return CyclicRepetition(n, min(self.s, n - 1), self.seed)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return len(finished) >= self.n - self.s

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        return least_squares_weights(self.matrix, finished)

    def _spread(self, node_of_rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """Keep the order: only the number of workers counts."""
        return node_of_rank, True


class CyclicMDS(GradientCode):
    """The cyclic code of fixed, real coefficients.

    Row ``i`` has the coefficients of a polynomial at ``i`` to ``i + s``, divided
    by their sum.  Its roots are ``exp(2 pi i e / n)`` for the ``s`` numbers ``e``
    around ``n / 2``; they are whole numbers, and the polynomial is real, where
    ``n - s`` is odd.  The weights are those of least squares.

    The sum can be had from any ``n - s`` workers, and from some smaller sets:
    workers 0 and 2 of `n` = 4, `s` = 1 have all parts once.  `decodable` decides
    that in the integers modulo a prime: see `cyclic_algebra`.

    In floating point the code is of no use where many late workers stand in a row:
    the weights reach 1e12 at ``n = 128``, ``s = 15``.  See `noise_gain`.

    Source: Raviv, Tamo, Tandon and Dimakis, "Gradient coding from cyclic MDS codes
    and expander graphs", ICML 2018.  Departures: only the real codes;
    coefficients come from the q-binomial theorem, as quotients of sines, without
    a product of roots.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        Any ``s`` workers may be late; 0 to ``n - 1``, with ``n - s`` odd.

    Raises
    ------
    UsageError
        If a number is out of bounds, or ``n - s`` is even.
    """

    def __init__(self, n: int, s: int) -> None:
        n = argument.whole("CyclicMDS", "n", n, least=1)
        self.s = argument.whole("CyclicMDS", "s", s, below=n)
        if (n - self.s) % 2 == 0:
            problem = f"n - s = {n} - {self.s} is even: the code is not real"
            remedy = f"give s = {self.s + 1}, or CyclicRepetition({n}, {self.s})"
            raise UsageError("CyclicMDS", problem, remedy)
        steps = np.arange(1, self.s + 1)
        quotients = np.sin(np.pi * (self.s + 1 - steps) / n) / np.sin(np.pi * steps / n)
        row = np.zeros(n)
        row[: self.s + 1] = np.cumprod(np.concatenate([[1.0], quotients]))
        row /= row.sum()
        super().__init__(np.stack([np.roll(row, i) for i in range(n)]), exact=True)

    def for_workers(self, n: int) -> CyclicMDS:
        """Give the code for another number of workers, if there is a real one."""
        return CyclicMDS(n, self.s)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return has_flat_weights(self.n, (self.n - self.s - 1) // 2, finished)

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        return least_squares_weights(self.matrix, finished)


def least_squares_weights(
    matrix: NDArray[np.float64], finished: frozenset[int]
) -> NDArray[np.float64]:
    """Give the shortest weights that bring the sum closest to all ones."""
    rows = sorted(finished)
    weights = np.zeros(len(matrix))
    weights[rows] = np.linalg.lstsq(matrix[rows].T, np.ones(matrix.shape[1]))[0]
    return weights


def _random_rows(n: int, s: int, seed: int) -> NDArray[np.float64]:
    """Draw ``H`` and solve for the rows, as the class says."""
    if s == 0:
        return np.eye(n)
    if s == n - 1:  # the only such vector
        return np.ones((n, n))
    free = np.random.default_rng(seed).standard_normal((s, n - 1))
    checks = np.concatenate([free, -free.sum(axis=1, keepdims=True)], axis=1)
    matrix = np.eye(n)
    for i in range(n):
        others = [(i + step) % n for step in range(1, s + 1)]
        matrix[i, others] = -np.linalg.solve(checks[:, others], checks[:, i])
    return matrix
