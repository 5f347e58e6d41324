"""Codes whose workers form groups: all members of a group give one vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.code_placement import spread_groups
from closeranks.collectives.coded.codes.gradient_code import GradientCode


class GroupCode(GradientCode):
    """Groups of workers with the same parts; one finished worker of each is enough.

    All coefficients are 1 and all weights are 0 or 1: the sum is exact in every
    dtype.

    Parameters
    ----------
    groups : sequence of int
        Worker -> its group, numbered from 0 without a gap.
    parts : sequence of sequence of int
        Group -> the parts that each of its members computes; each part in one
        group.

    Attributes
    ----------
    n_groups : int
        How many groups there are.
    """

    def __init__(self, groups: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
        self.n_groups = len(parts)
        self._groups = tuple(groups)
        matrix = np.zeros((len(self._groups), sum(map(len, parts))))
        for worker, group in enumerate(self._groups):
            matrix[worker, list(parts[group])] = 1
        super().__init__(matrix, exact=True)

    def group(self, worker: int) -> int:
        """Give the group of a worker."""
        return self._groups[worker]

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return len({self._groups[worker] for worker in finished}) == self.n_groups

    def _solve(self, finished: frozenset[int]) -> NDArray[np.float64]:
        """Take the lowest finished worker of each group."""
        lowest = {self._groups[worker]: worker for worker in sorted(finished, reverse=True)}
        weights = np.zeros(self.n)
        weights[list(lowest.values())] = 1
        return weights

    def _spread(self, node_of_rank: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
        return spread_groups(self._groups, node_of_rank), True

    def _lost_node(self, node_of_worker: NDArray[np.int64]) -> int | None:
        """Give the lowest node that holds all members of a group, or None."""
        first = np.full(self.n_groups, self.n)
        last = np.full(self.n_groups, -1)
        np.minimum.at(first, list(self._groups), node_of_worker)
        np.maximum.at(last, list(self._groups), node_of_worker)
        inside = first[first == last]
        return int(inside.min()) if inside.size else None
