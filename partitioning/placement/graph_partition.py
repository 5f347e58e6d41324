"""Positions cut into groups with little between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.placement.machine_tiers import depth_first, used_levels

#: Moves that are looked at for one exchange.
_MOVES: Final = 8
#: Exchanges without gain after which a pass ends.
_PATIENCE: Final = 40
#: Passes over all positions.
_PASSES: Final = 6

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


def top_down(weights: Ints, topology: Topology) -> Ints:
    """Cut all positions over the groups of the outermost level, then inside of each.

    Parameters
    ----------
    weights : ndarray, shape (size, size), dtype int64
        Symmetric.
    topology : Topology
        The machine; its groups may be unequal.

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
        labels = parts(weights[np.ix_(positions, positions)], np.diff(bounds).tolist())
        for part, (start, end) in enumerate(pairwise(bounds)):
            pending.append((positions[labels == part], ranks[start:end], depth + 1))
    return order


def bottom_up(weights: Ints, arities: Sequence[int], topology: Topology) -> Ints:
    """Join positions to innermost groups, these to the next, as TreeMatch does [1]_.

    Parameters
    ----------
    weights : ndarray, shape (size, size), dtype int64
        Symmetric.
    arities : sequence of int
        Of the tiers of the machine, outermost first.
    topology : Topology
        The machine, of equal groups.

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
        labels = parts(weights, [arity] * count)
        by_part = np.argsort(labels, kind="stable").reshape(count, arity)
        members = members[by_part].reshape(count, -1)
        starts = np.arange(0, len(weights), arity)
        weights = weights[by_part.reshape(-1)][:, by_part.reshape(-1)]
        weights = np.add.reduceat(np.add.reduceat(weights, starts, axis=0), starts, axis=1)
        np.fill_diagonal(weights, 0)
    order = np.empty(topology.size, dtype=np.int64)
    order[members.reshape(-1)] = depth_first(topology)
    return order


def parts(weights: Ints, sizes: Sequence[int]) -> Ints:
    """Cut positions into parts of given sizes with little weight between parts.

    Parameters
    ----------
    weights : ndarray, shape (n, n), dtype int64
        Symmetric, with a diagonal of 0.
    sizes : sequence of int
        Of the parts; their sum is n.

    Returns
    -------
    ndarray, shape (n,), dtype int64
        Part of each position.
    """
    if len(sizes) == 1 or max(sizes) == len(weights):
        return np.zeros(len(weights), dtype=np.int64)
    if len(sizes) == len(weights):
        return np.arange(len(weights))
    return refined(weights, grown(weights, sizes), len(sizes))


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
    n = len(weights)
    labels = labels.copy()
    by_part = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_part], np.arange(count))
    to = np.add.reduceat(weights[:, by_part], starts, axis=1)
    gains = to - to[np.arange(n), labels][:, None]
    barred = np.zeros((n, count), dtype=bool)
    barred[np.arange(n), labels] = True
    best, total, best_gain = labels.copy(), 0, 0
    since = 0
    locked = np.zeros(n, dtype=bool)
    while since < _PATIENCE:
        found = _best_exchange(weights, labels, gains, barred, locked)
        if found is None:
            break
        gain, p, q = found
        a, b = int(labels[p]), int(labels[q])
        labels[p], labels[q] = b, a
        moved = weights[:, q] - weights[:, p]
        to[:, a] += moved
        to[:, b] -= moved
        gains = to - to[np.arange(n), labels][:, None]
        locked[[p, q]] = True
        barred[[p, q]] = True
        total += gain
        since += 1
        if total > best_gain:
            best, best_gain, since = labels.copy(), total, 0
    return best, best_gain


def _best_exchange(
    weights: Ints, labels: Ints, gains: Ints, barred: npt.NDArray[np.bool_], locked: Any
) -> tuple[int, int, int] | None:
    """Give gain and positions of the best exchange that begins with a good move."""
    least = np.iinfo(np.int64).min
    moves = np.where(barred, least, gains).reshape(-1)
    some = min(_MOVES, moves.size)
    found: tuple[int, int, int] | None = None
    for move in np.sort(np.argpartition(moves, moves.size - some)[-some:]).tolist():
        p, b = divmod(move, gains.shape[1])
        if moves[move] == least:
            continue
        others = np.flatnonzero((labels == b) & ~locked)
        if not others.size:
            continue
        sums = gains[p, b] + gains[others, labels[p]] - 2 * weights[p, others]
        at = int(sums.argmax())
        if found is None or int(sums[at]) > found[0]:
            found = int(sums[at]), p, int(others[at])
    return found
