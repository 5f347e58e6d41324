"""A tree of workers in which each parent stands late children."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.collectives.coded.codes.worker_set import WorkerSet, numbered, workers_of
from closeranks.comms import argument
from closeranks.errors import CodeError


class Tree(GroupCode):
    """Coded reduction along a tree.

    Below the root, which is no worker, each node has ``branching`` children, down
    to ``depth`` levels.  Workers count from 0, level by level.  The children of a
    node are in ``g = branching // (s + 1)`` groups, as in `Repetition`; the
    subtrees of a group have the same parts.  Each worker computes one of ``g +
    g**2 + ... + g**depth`` parts; a parent adds to its own vector those of one
    child of each group, and sends the sum up: no node gets more than ``branching``
    messages.

    `decodable` and `decode` take the vectors as they are, for a transport that
    does not go by parents: the lowest finished worker of each part counts.
    `decode_along` goes by parents: a worker above which one is late does not
    count.

    Source: Reisizadeh, Prakash, Pedarsani and Avestimehr, "CodedReduce: A fast and
    robust framework for gradient aggregation in distributed learning", IEEE/ACM
    Transactions on Networking, 2022.  Departures: repetition in place of random
    coefficients, so any ``branching`` will do; the load is the paper's where
    ``s + 1`` divides it.

    Parameters
    ----------
    branching : int
        Children of a node.
    depth : int
        Levels of workers.
    s : int
        Late children that each parent stands; 0 to ``branching - 1``.

    Raises
    ------
    UsageError
        If a number is out of bounds.
    """

    def __init__(self, branching: int, depth: int, s: int) -> None:
        self.branching = argument.whole("Tree", "branching", branching, least=1)
        self.depth = argument.whole("Tree", "depth", depth, least=1)
        self.s = argument.whole("Tree", "s", s, below=self.branching)
        g = self.branching // (self.s + 1)
        level, groups, begin = [0], list[int](), 0
        for number in range(1, self.depth + 1):
            # The part of a worker, within its level: its parent's, then its group.
            level = [
                part * g + child * g // self.branching
                for part in level
                for child in range(self.branching)
            ]
            groups += [begin + part for part in level]
            begin += g**number
        self._g = g
        super().__init__(groups, [[part] for part in range(begin)])

    def parent(self, worker: int) -> int | None:
        """Give the worker above another one; None at the first level."""
        above = worker // self.branching - 1
        return None if above < 0 else above

    def decode_along(self, finished: WorkerSet) -> NDArray[np.float64]:
        """Give weights of vectors that come up the tree through their parents.

        Parameters
        ----------
        finished : iterable of int, or ndarray of bool with shape (n,)
            The workers that are not late.

        Returns
        -------
        ndarray, shape (n,), dtype float64
            1 for a worker of each part, with all above it, else 0.

        Raises
        ------
        CodeError
            If some parent, or the root, lacks a group of children.
        """
        there = workers_of("decode_along", finished, self.n)
        chosen = self._below(-1, there)
        if chosen is None:
            late = numbered("worker", set(range(self.n)) - there)
            problem = f"without {late} some parent lacks a group of children"
            raise CodeError("decode_along", problem, "wait for more workers")
        weights = np.zeros(self.n)
        weights[chosen] = 1
        return weights

    def _below(self, worker: int, finished: frozenset[int]) -> list[int] | None:
        """Give the workers below one (-1: the root) that make its sum, or None."""
        chosen, served = list[int](), set[int]()
        for child, group in self._children(worker):
            if group in served or child not in finished:
                continue
            below = self._below(child, finished)
            if below is not None:
                served.add(group)
                chosen += [child, *below]
        has_children = (worker + 1) * self.branching < self.n
        return chosen if len(served) == self._g or not has_children else None

    def _children(self, worker: int) -> Iterator[tuple[int, int]]:
        """Give the children of a worker, each with its group among them."""
        first = (worker + 1) * self.branching
        for child in range(self.branching if first < self.n else 0):
            yield first + child, child * self._g // self.branching
