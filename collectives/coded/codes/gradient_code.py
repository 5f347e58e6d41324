"""What every gradient code has: coefficients, and weights that undo them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from inspect import signature
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.code_placement import (
    MOST_TRIES,
    lost_node,
    node_of_ranks,
    ranks_of_workers,
    search,
)
from closeranks.collectives.coded.codes.worker_set import WorkerSet, numbered, workers_of
from closeranks.comms.topology import Topology
from closeranks.errors import CodeError, UsageError

#: Sets of workers of which the weights are kept; the one used longest ago goes first.
MOST_SETS: Final = 256
#: A part whose weight differs from 1 by more is named in errors.
WRONG: Final = 1e-6


class GradientCode(ABC):
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

    def __repr__(self) -> str:
        names = [name for name in signature(type(self)).parameters if hasattr(self, name)]
        given = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"{type(self).__name__}({given})"

    def for_workers(self, n: int) -> GradientCode:
        """Give a code of this kind for another number of workers.

        Parameters
        ----------
        n : int
            Workers.

        Returns
        -------
        GradientCode
            With the parameters of this one, lowered where n is too small for them.

        Raises
        ------
        UsageError
            If this kind of code has none.
        """
        problem = f"no {type(self).__name__} of {self.n} workers follows for {n}"
        raise UsageError("for_workers", problem, "make a new code")

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
        there = workers_of("decode", finished, self.n)
        found = self._weights(there)
        if found is None:
            problem = f"{numbered('worker', there)} of {self.n} do not give the sum"
            missing = numbered("part", self._missing(there))
            raise CodeError("decode", f"{problem}, for {missing}", "wait for more workers")
        return found

    def error(self, finished: WorkerSet) -> float:
        """Give the squared distance between ``weights @ matrix`` and all ones."""
        return float(np.square(self.decode(finished) @ self.matrix - 1).sum())

    def noise_gain(self, finished: WorkerSet) -> float:
        """Give how much a rounding error of a vector may grow in the sum."""
        return float(np.abs(self.decode(finished)).sum() * self._largest)

    def place(self, topology: Topology) -> NDArray[np.int64]:
        """Give each worker a rank, so that any one node may be lost.

        Parameters
        ----------
        topology : Topology
            Of ``n`` ranks; without a level ``node`` it counts as one node.

        Returns
        -------
        ndarray, shape (n,), dtype int64
            Worker -> rank.  Without the workers of any one node the sum can
            still be had.

        Raises
        ------
        UsageError
            If the topology has another number of ranks.
        CodeError
            If no order does that; it names a node, and the parts that the sum
            lacks without it.
        """
        node_of_rank = node_of_ranks(topology, self.n)
        node_of_worker, all_seen = self._spread(node_of_rank)
        node = self._lost_node(node_of_worker)
        if node is not None:
            left = frozenset(np.flatnonzero(node_of_worker != node).tolist())
            size, missing = self.n - len(left), numbered("part", self._missing(left))
            orders = "no order" if all_seen else f"none of {MOST_TRIES} tried orders"
            problem = (
                f"{orders} lets any one node be lost: without node {node}, which has {size} of "
                f"{self.n} ranks, the sum lacks {missing}"
            )
            raise CodeError("place", problem, "take a code for more late workers, or more nodes")
        return ranks_of_workers(node_of_worker, node_of_rank)

    def _weights(self, there: frozenset[int]) -> NDArray[np.float64] | None:
        """Give the weights for a set, or None; the latest sets are kept."""
        if there in self._known:
            self._known.move_to_end(there)
            return self._known[there]
        found = self._solve(there) if self._has_sum(there) else None
        if found is not None:
            found.setflags(write=False)
        self._known[there] = found
        if len(self._known) > MOST_SETS:
            self._known.popitem(last=False)
        return found

    @abstractmethod
    def _has_sum(self, finished: frozenset[int]) -> bool:
        """Tell whether there are weights for a set of workers."""

    @abstractmethod
    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        """Compute the weights for a set of workers for which there are some."""

    def _missing(self, finished: frozenset[int]) -> list[int]:
        """Give the parts that the sum lacks: that nobody has, else that come out wrong."""
        rows = self.matrix[sorted(finished)]
        absent = np.flatnonzero(~rows.any(axis=0))
        if not absent.size:
            best = np.linalg.lstsq(rows.T, np.ones(self.parts))[0]
            absent = np.flatnonzero(np.abs(best @ rows - 1) > WRONG)
        return [int(part) for part in absent]

    def _spread(self, node_of_rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        """Give worker -> node, and whether no other would do if it does not."""
        return search(node_of_rank, self._has_sum)

    def _lost_node(self, node_of_worker: NDArray[np.int64]) -> int | None:
        """Give a node without whose workers the sum cannot be had, or None."""
        return lost_node(node_of_worker, self._has_sum)
