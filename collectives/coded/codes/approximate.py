"""Codes that estimate the sum from however many workers have finished."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.cyclic import least_squares_weights
from closeranks.collectives.coded.codes.designs import block_design, designs_near
from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.random_graph import regular_graph
from closeranks.comms import argument
from closeranks.errors import UsageError


class Expander(GradientCode):
    """The code of a random graph: worker ``i`` computes the parts of its neighbours.

    The matrix is the adjacency matrix of a random graph in which each vertex has
    ``d`` neighbours, divided by ``d``.  The weights are those of least squares.
    Any workers but none give an estimate of the sum.  With ``s`` of them late,
    `error` is at most ``(second / d)**2 * n * s / (n - s)``.

    Source: Raviv, Tamo, Tandon and Dimakis, "Gradient coding from cyclic MDS codes
    and expander graphs", ICML 2018.  Departure: the weights are optimal,
    not constant.

    Parameters
    ----------
    n : int
        Workers.
    d : int
        Neighbours, 1 to ``n - 1``, with ``n * d`` even.
    seed : int
        Of NumPy's generator PCG64: the same code on all ranks.

    Attributes
    ----------
    s : int
        How many workers `GradientCoding` lets be late: ``d - 1``.
    second : float
        The largest absolute value of an eigenvalue of the adjacency matrix, but
        for the first, ``d``.

    Raises
    ------
    UsageError
        If a number is out of bounds, or there is no such graph.
    """

    def __init__(self, n: int, d: int, seed: int = 0) -> None:
        n = argument.whole("Expander", "n", n, least=2)
        self.d = argument.whole("Expander", "d", d, least=1, below=n)
        self.seed = argument.whole("Expander", "seed", seed)
        if n * self.d % 2:
            problem = f"n = {n} and d = {self.d} are odd: no graph has such degrees"
            raise UsageError("Expander", problem, "give an even n or d")
        self.s = self.d - 1
        graph = regular_graph(n, self.d, self.seed)
        self.second = float(np.sort(np.abs(np.linalg.eigvalsh(graph)))[-2])
        super().__init__(graph / self.d, exact=False)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return bool(finished)

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        return least_squares_weights(self.matrix, finished)

    def _spread(self, node_of_rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """Keep the order: any workers do."""
        return node_of_rank, True


class BalancedBlockDesign(GradientCode):
    """The code of a symmetric design: any two workers share ``lam`` parts.

    Worker ``i`` computes the ``k`` parts of block ``i``, with coefficient 1; each
    part is in ``k`` blocks, and ``lam = k (k - 1) / (n - 1)``.  With ``f``
    finished workers the weight of each is ``k / (k + lam (f - 1))``, which is
    optimal, and `error` is ``n - k**2 f / (k + lam (f - 1))``, whoever is
    missing.  So the vectors can be added before it is known who is late.

    Source: Kadhe, Koyluoglu and Ramchandran, "Gradient coding based on block
    designs for mitigating adversarial stragglers", ISIT 2019.
    Departure: the known designs are cyclic difference sets, and those of bent
    functions: see `designs`.

    Parameters
    ----------
    n : int
        Workers.
    k : int
        Parts of a worker; 1 to ``n``.

    Attributes
    ----------
    s : int
        How many workers `GradientCoding` lets be late: ``k - 1``.
    lam : int
        Parts that two workers share.

    Raises
    ------
    UsageError
        If a number is out of bounds or no design is known; it names others.
    """

    def __init__(self, n: int, k: int) -> None:
        n = argument.whole("BalancedBlockDesign", "n", n, least=1)
        self.k = argument.whole("BalancedBlockDesign", "k", k, least=1, below=n + 1)
        design = block_design(n, self.k)
        if design is None:
            problem = f"no design with n = {n}, k = {self.k} is known"
            others = ", ".join(map(str, designs_near(n, self.k)))
            raise UsageError("BalancedBlockDesign", problem, f"give (n, k) = {others}")
        self.s = self.k - 1
        self.lam = self.k * (self.k - 1) // max(n - 1, 1)
        super().__init__(design, exact=False)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return bool(finished)

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        weights = np.zeros(self.n)
        weights[sorted(finished)] = self.k / (self.k + self.lam * (len(finished) - 1))
        return weights

    def _spread(self, node_of_rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """Keep the order: any workers do."""
        return node_of_rank, True
