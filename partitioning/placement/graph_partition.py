"""Positions cut into groups with little between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import Final

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.placement.machine_tiers import depth_first, used_levels

#: The gain of a move that is not allowed.
_NEVER: Final = np.iinfo(np.int64).min
#: Moves that are looked at for one exchange.
_MOVES: Final = 8
#: Exchanges without gain after which a pass ends.
_PATIENCE: Final = 40
#: Passes over all positions.
_PASSES: Final = 6
#: All rounds of cuts have so many positions together, but there is one at least.
_POSITIONS: Final = 3072

Ints = npt.NDArray[np.int64]


def whole_weights(weights: npt.NDArray[np.float64]) -> Ints:
    """Make a symmetric matrix of whole numbers: sums are alike on all processors.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype float64
        Bytes from row to column.

    Returns
    -------
    ndarray, shape (n, n), dtype int64
        In parts of the largest sum of both ways; the diagonal is 0.
    """
    both = weights + weights.T
    np.fill_diagonal(both, 0.0)
    most = float(both.max())
    return np.rint(both * (2.0**36 / most) if most else both).astype(np.int64)


def partitions(
    weights: Ints, topology: Topology, arities: Sequence[int] | None, rounds: int
) -> Iterator[Ints]:
    """Give orders that keep much weight inside of groups.

    Parameters
    ----------
    weights : ndarray, shape (size, size), dtype int64
        Symmetric, with a diagonal of 0.
    topology : Topology
        The machine.
    arities : sequence of int or None
        Of the tiers of a machine of equal groups; None: they are unequal.
    rounds : int
        How often, each time from another start; less often for large machines.

    Yields
    ------
    ndarray, shape (size,), dtype int64
        Rank by position.
    """
    draw = np.random.Generator(np.random.PCG64(1))
    for k in range(max(1, min(rounds, _POSITIONS // topology.size))):
        other = draw if k else None
        fine, coarse = GraphCut(other), GraphCut(other, coarse=True)
        for cut in (fine, coarse, GraphCut(other, stepwise=True, coarse=True)):
            yield top_down(weights, topology, cut)
        if arities:
            yield bottom_up(weights, arities, topology, fine)
            yield bottom_up(weights, arities, topology, coarse)


def _primes(number: int) -> list[int]:
    """Give the prime factors of a number."""
    first = next((f for f in range(2, number) if number % f == 0), number)
    return [first, *_primes(number // first)] if first < number else [number]


def top_down(weights: Ints, topology: Topology, cut: GraphCut) -> Ints:
    """Cut all positions over the groups of the outermost level, then inside of each.

    Parameters
    ----------
    weights : ndarray, shape (size, size), dtype int64
        Symmetric.
    topology : Topology
        The machine; its groups may be unequal.
    cut : GraphCut
        How to cut.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        Rank by position.
    """
    order = np.empty(topology.size, dtype=np.int64)
    levels = used_levels(topology)
    pending = [(np.arange(topology.size), depth_first(topology), 0)]
    while pending:
        positions, ranks, depth = pending.pop()
        if depth >= len(levels) - 1:
            order[positions] = ranks
            continue
        row = topology.groups[levels[depth]][ranks]
        bounds = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), ranks.size]
        labels = cut(weights[np.ix_(positions, positions)], np.diff(bounds).tolist())
        for part, (start, end) in enumerate(pairwise(bounds)):
            pending.append((positions[labels == part], ranks[start:end], depth + 1))
    return order


def bottom_up(weights: Ints, arities: Sequence[int], topology: Topology, cut: GraphCut) -> Ints:
    """Join positions to innermost groups, these to the next, as TreeMatch does [1]_.

    Parameters
    ----------
    weights : ndarray, shape (size, size), dtype int64
        Symmetric.
    arities : sequence of int
        Of the tiers of the machine, outermost first.
    topology : Topology
        The machine, of equal groups.
    cut : GraphCut
        How to cut.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        Rank by position.

    References
    ----------
    .. [1] E. Jeannot and G. Mercier, Near-optimal placement of MPI processes
       on hierarchical NUMA architectures, Euro-Par 2010.  It joins greedily by
       the weights of all combinations; here a group grows position by
       position, and exchanges follow.
    """
    members = np.arange(topology.size).reshape(-1, 1)
    for arity in reversed(arities):
        count = len(members) // arity
        labels = cut(weights, [arity] * count)
        by_part = np.argsort(labels, kind="stable").reshape(count, arity)
        members = members[by_part].reshape(count, -1)
        weights = joined(weights, labels, count)
    order = np.empty(topology.size, dtype=np.int64)
    order[members.reshape(-1)] = depth_first(topology)
    return order


class GraphCut:
    """Cuts positions into parts of given sizes with little weight between parts.

    Parameters
    ----------
    draw : Generator, optional
        Parts are grown with weights that it changes: another start for the
        exchanges that follow, which take the weights as they are.
    stepwise : bool
        Whether to cut into few parts first, a prime number, and these again.
    coarse : bool
        Whether to join positions first that exchange much, cut these blocks in
        the same way, and then improve the cut of the positions [1]_.

    References
    ----------
    .. [1] B. Hendrickson and R. Leland, A multilevel algorithm for partitioning
       graphs, 1995.  Blocks have equal sizes here, so parts keep theirs.
    """

    def __init__(
        self,
        draw: np.random.Generator | None = None,
        *,
        stepwise: bool = False,
        coarse: bool = False,
    ) -> None:
        self._draw = draw
        self._stepwise = stepwise
        self._coarse = coarse

    def __call__(self, weights: Ints, sizes: Sequence[int]) -> Ints:
        """Give the part of each position.

        Parameters
        ----------
        weights : ndarray, shape (n, n), dtype int64
            Symmetric, with a diagonal of 0.
        sizes : sequence of int
            Of the parts; their sum is n.

        Returns
        -------
        ndarray, shape (n,), dtype int64
            0..len(sizes)-1.
        """
        n, count = len(weights), len(sizes)
        if count == 1:
            return np.zeros(n, dtype=np.int64)
        if count == n:
            return np.arange(n)
        if self._coarse:
            joint = _primes(gcd(*sizes))[0]  # positions that are cut as one
            if joint > 1 and n // joint >= 2 * count:
                return self._by_blocks(weights, sizes, joint)
        first = next((f for f in range(2, count) if count % f == 0), count)
        if not self._stepwise or first == count:
            return refined(weights, grown(self._changed(weights), sizes), count)
        inner = count // first
        blocks = [sizes[k : k + inner] for k in range(0, count, inner)]
        outer = self(weights, [sum(block) for block in blocks])
        labels = np.empty(n, dtype=np.int64)
        for k, block in enumerate(blocks):
            some = np.flatnonzero(outer == k)
            labels[some] = k * inner + self(weights[np.ix_(some, some)], block)
        return refined(weights, labels, count)

    def _by_blocks(self, weights: Ints, sizes: Sequence[int], joint: int) -> Ints:
        """Join positions to blocks, cut these, and improve the cut of the positions."""
        count = len(weights) // joint
        blocks = grown(self._changed(weights), [joint] * count)
        coarse = self(joined(weights, blocks, count), [size // joint for size in sizes])
        return refined(weights, coarse[blocks], len(sizes))

    def _changed(self, weights: Ints) -> Ints:
        """Make each weight smaller by some part, both ways alike."""
        if self._draw is None:
            return weights
        factors = self._draw.integers(1, 129, weights.shape)
        return weights // 256 * (factors + factors.T)


def joined(weights: Ints, labels: Ints, count: int) -> Ints:
    """Add up the weights between parts.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype int64
        Symmetric, with a diagonal of 0.
    labels : ndarray, shape (n,), dtype int64
        Part of each position.
    count : int
        Number of parts; their sizes are equal.

    Returns
    -------
    ndarray, shape (count, count), dtype int64
        Symmetric, with a diagonal of 0.
    """
    by_part = np.argsort(labels, kind="stable")
    starts = np.arange(0, len(weights), len(weights) // count)
    rows: Ints = np.add.reduceat(weights[by_part], starts, axis=0)
    between: Ints = np.add.reduceat(rows[:, by_part], starts, axis=1)
    np.fill_diagonal(between, 0)
    return between


def grown(weights: Ints, sizes: Sequence[int]) -> Ints:
    """Grow parts one after the other, by the position that adds least to the cut.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype int64
        Symmetric, with a diagonal of 0.
    sizes : sequence of int
        Of the parts.

    Returns
    -------
    ndarray, shape (n,), dtype int64
        Part of each position.
    """
    n = len(weights)
    labels = np.full(n, -1, dtype=np.int64)
    free = weights.sum(axis=1)  # weight to positions of no part
    least = np.iinfo(np.int64).min
    for part, size in enumerate(sizes):
        inside = np.zeros(n, dtype=np.int64)  # weight to this part
        for step in range(size):
            wanted = 2 * inside - free if step else -free
            chosen = int(np.where(labels < 0, wanted, least).argmax())
            labels[chosen] = part
            free -= weights[chosen]
            inside += weights[chosen]
    return labels


def refined(weights: Ints, labels: Ints, count: int) -> Ints:
    """Exchange positions between parts, by passes that also go uphill [1]_.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype int64
        Symmetric, with a diagonal of 0.
    labels : ndarray, shape (n,), dtype int64
        Part of each position.
    count : int
        Number of parts.

    Returns
    -------
    ndarray, shape (n,), dtype int64
        Better parts of the same sizes.

    References
    ----------
    .. [1] B. W. Kernighan and S. Lin, An efficient heuristic procedure for
       partitioning graphs, 1970.  Here over all parts at once, and of all
       exchanges those that begin with one of the best moves.
    """
    for _ in range(_PASSES):
        labels, gain = _one_pass(weights, labels, count)
        if gain <= 0:
            break
    return labels


def _one_pass(weights: Ints, labels: Ints, count: int) -> tuple[Ints, int]:
    """Exchange each position at most once; keep the best prefix of the exchanges."""
    moves = _Moves(weights, labels, count)
    best, total, best_gain, since = labels, 0, 0, 0
    while since < _PATIENCE:
        found = moves.best_exchange()
        if found is None:
            break
        gain, p, q = found
        moves.exchange(p, q)
        total += gain
        since += 1
        if total > best_gain:
            best, best_gain, since = moves.labels.copy(), total, 0
    return best, best_gain


class _Moves:
    """What each position would gain in each part; updated by exchanges.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype int64
        Symmetric, with a diagonal of 0.
    labels : ndarray, shape (n,), dtype int64
        Part of each position.
    count : int
        Number of parts.
    """

    def __init__(self, weights: Ints, labels: Ints, count: int) -> None:
        self.labels = labels.copy()
        self._weights = weights
        by_part = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[by_part], np.arange(count))
        self._to = np.add.reduceat(weights[:, by_part], starts, axis=1)
        self._gains = np.empty_like(self._to)
        self._target = np.empty_like(labels)  # the part where each position gains most
        self._most = np.empty_like(labels)  # what it gains there
        self._locked = np.zeros(len(labels), dtype=bool)
        self._weigh(np.arange(len(labels)))

    def _weigh(self, some: Ints) -> None:
        """Find the gains of some positions anew."""
        own = self.labels[some]
        gains = self._to[some] - self._to[some, own][:, None]
        gains[np.arange(some.size), own] = _NEVER
        gains[self._locked[some]] = _NEVER
        self._gains[some] = gains
        self._target[some] = gains.argmax(axis=1)
        self._most[some] = gains.max(axis=1)

    def best_exchange(self) -> tuple[int, int, int] | None:
        """Give gain and positions of the best exchange that begins with a good move."""
        at = max(0, self._most.size - _MOVES)
        bar = np.partition(self._most, at)[at]  # the value: which of equal ones may differ
        good = (self._most > bar).nonzero()[0], (self._most == bar).nonzero()[0]
        found: tuple[int, int, int] | None = None
        for p in np.concatenate(good)[:_MOVES].tolist():
            if self._most[p] == _NEVER:
                break
            there = np.flatnonzero((self.labels == self._target[p]) & ~self._locked)
            if not there.size:
                continue
            back = self._gains[there, self.labels[p]]
            sums = self._most[p] + back - 2 * self._weights[p, there]
            best = int(sums.argmax())
            if found is None or int(sums[best]) > found[0]:
                found = int(sums[best]), p, int(there[best])
        return found

    def exchange(self, p: int, q: int) -> None:
        """Exchange two positions, for good in this pass."""
        a, b = int(self.labels[p]), int(self.labels[q])
        self.labels[p], self.labels[q] = b, a
        self._locked[[p, q]] = True
        moved = self._weights[:, q] - self._weights[:, p]
        self._to[:, a] += moved
        self._to[:, b] -= moved
        for part, change in ((a, moved), (b, -moved)):
            self._gains[:, part] += np.where(self._gains[:, part] == _NEVER, 0, change)
        near = (moved != 0) & ~self._locked
        near |= (self.labels == a) | (self.labels == b)
        self._weigh(np.flatnonzero(near))
