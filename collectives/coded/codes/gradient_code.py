"""What every gradient code has: coefficients, and weights that undo them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.worker_set import WorkerSet, workers_of
from closeranks.errors import CodeError

#: Sets of workers of which the weights are kept; the one used longest ago goes first.
MOST_SETS: Final = 256


class GradientCode:
    """Coefficients by which workers combine the parts of a batch.

    Worker ``i`` computes the gradients of its parts and gives the vector
    ``sum(matrix[i, j] * gradient[j])``.  The sum of all gradients is the sum of
    ``weights[i]`` times these vectors, for the weights that `decode` gives.

    All methods are local and pure.

    Parameters
    ----------
    matrix : ndarray, shape (n, parts), dtype float64
        Worker, part -> coefficient; 0 for parts that a worker does not compute.
    exact : bool
        Whether `decode` gives the exact sum, not an estimate.

    Attributes
    ----------
    n, parts : int
        Workers, and parts of a batch; all parts are of one size.
    load : float
        The largest share of the batch that one worker computes.
    exact : bool
        As given.
    matrix : ndarray, shape (n, parts), dtype float64
        As given; read-only.
    """

    def __init__(self, matrix: NDArray[np.float64], *, exact: bool) -> None:
        self.matrix = np.array(matrix, np.float64)
        self.matrix.setflags(write=False)
        self.n, self.parts = map(int, self.matrix.shape)
        self.exact = exact
        self.load = float(np.count_nonzero(self.matrix, axis=1).max() / self.parts)
        self._largest = float(np.abs(self.matrix).max())
        self._known: OrderedDict[frozenset[int], NDArray[np.float64] | None] = OrderedDict()

    def assignment(self, worker: int) -> tuple[int, ...]:
        """Give the parts that a worker computes, ascending."""
        return tuple(np.flatnonzero(self.matrix[worker]).tolist())

    def decodable(self, finished: WorkerSet) -> bool:
        """Tell whether the sum can be had from the vectors of some workers.

        Parameters
        ----------
        finished : iterable of int, or ndarray of bool with shape (n,)
            The workers whose vectors are there.

        Returns
        -------
        bool
            Decided exactly, never by the size of a rounding error.
        """
        return self._has_sum(workers_of("decodable", finished, self.n))

    def decode(self, finished: WorkerSet) -> NDArray[np.float64]:
        """Give the weights of the vectors that make the sum.

        Parameters
        ----------
        finished : iterable of int, or ndarray of bool with shape (n,)
            The workers whose vectors are there.

        Returns
        -------
        ndarray, shape (n,), dtype float64
            0 for the others; read-only.

        Raises
        ------
        CodeError
            If no weights make the sum.
        """
        found = self._weights("decode", finished)
        if found is None:
            there = sorted(workers_of("decode", finished, self.n))
            problem = f"the sum cannot be had from workers {there} of {self.n}"
            raise CodeError("decode", problem, "wait for more workers")
        return found

    def error(self, finished: WorkerSet) -> float:
        """Give the squared distance between ``weights @ matrix`` and all ones."""
        return float(np.square(self.decode(finished) @ self.matrix - 1).sum())

    def noise_gain(self, finished: WorkerSet) -> float:
        """Give how much a rounding error of a vector may grow in the sum."""
        return float(np.abs(self.decode(finished)).sum() * self._largest)

    def _weights(self, where: str, finished: WorkerSet) -> NDArray[np.float64] | None:
        """Give the weights for a set, or None; the latest sets are kept."""
        there = workers_of(where, finished, self.n)
        if there in self._known:
            self._known.move_to_end(there)
            return self._known[there]
        found = self._solve(there)
        if found is not None:
            found.setflags(write=False)
        self._known[there] = found
        if len(self._known) > MOST_SETS:
            self._known.popitem(last=False)
        return found

    def _has_sum(self, finished: frozenset[int]) -> bool:
        """Tell whether `_solve` gives weights."""
        return bool(finished)

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64] | None:
        """Compute the weights for a set of workers, or None if there are none."""
        raise CodeError("decode", f"{type(self).__name__} gives no weights for {finished}", "")
