"""Where the index space is cut: into regions of about as many pairs each.

All ranks add their histograms; so all know the same cuts.  A bin with more
pairs than half a region, and than most bins, is divided further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Bins of a histogram, at least, for each region, and at most: 64 KiB on any number of ranks.
_BINS, _BINS_A_REGION, _MOST_BINS = 1024, 16, 8192
#: A bin is divided if it has so many times as many pairs as bins have on average.
_HEAVY: Final = 4
#: Histograms that are made at most: each divides bins by a factor of up to `_BINS`.
_MOST_ROUNDS: Final = 6


def first_edges(length: int, regions: int) -> Ints:
    """Return the edges of the bins of the first histogram.

    Parameters
    ----------
    length : int
        Indices that there may be.
    regions : int
        How many regions there will be.

    Returns
    -------
    ndarray of int64, shape (bins + 1,)
        From 0 to ``length``; the number of bins does not depend on the length.
    """
    bins = min(max(_BINS, _BINS_A_REGION * regions), _MOST_BINS)
    return np.array([length * edge // bins for edge in range(bins + 1)], np.int64)


def histogram(indices: Ints, edges: Ints) -> Ints:
    """Count ascending indices between neighbouring edges."""
    return np.diff(np.searchsorted(indices, edges)).astype(np.int64)


def region_cuts(
    indices: Ints, edges: Ints, counts: Ints, regions: int, add: Callable[[Ints], Ints]
) -> Ints:
    """Cut the index space where the pairs of all ranks lie.

    Collective, if bins are to be divided.

    Parameters
    ----------
    indices : ndarray of int64
        Of this rank, ascending.
    edges, counts : ndarray of int64
        A histogram of the indices of all ranks.
    regions : int
        How many regions.
    add : callable
        Adds an array over all ranks.

    Returns
    -------
    ndarray of int64, shape (regions + 1,)
        Ascending, from the first edge to the last, equal on all ranks.
    """
    total = int(counts.sum())
    for _ in range(_MOST_ROUNDS - 1):
        least = max(total // (2 * regions), _HEAVY * total // len(counts))
        is_heavy = (counts > least) & (np.diff(edges) > 1)
        if total < _BINS or not is_heavy.any():
            break
        edges = _divided(edges, is_heavy)
        counts = add(histogram(indices, edges))
    return _cuts(edges, counts, regions)


def _divided(edges: Ints, is_heavy: NDArray[np.bool_]) -> Ints:
    """Divide bins into about as many parts as a histogram has bins, all together."""
    parts = max(_BINS // int(is_heavy.sum()), 2)
    found = edges[:1].tolist()
    for low, high, heavy in zip(
        edges[:-1].tolist(), edges[1:].tolist(), is_heavy.tolist(), strict=True
    ):
        n = min(parts, high - low) if heavy else 1
        found += [low + (high - low) * part // n for part in range(1, n + 1)]
    return np.array(found, np.int64)


def _cuts(edges: Ints, counts: Ints, regions: int) -> Ints:
    """Interpolate inside of bins, as if their pairs were spread evenly."""
    before = np.concatenate([[0], np.cumsum(counts)]).tolist()
    known, total = edges.tolist(), before[-1]
    cuts = [known[0]]
    for region in range(1, regions):
        wanted = total * region // regions
        bin_ = min(int(np.searchsorted(before, wanted, "right")) - 1, len(known) - 2)
        low, high, there = known[bin_], known[bin_ + 1], before[bin_ + 1] - before[bin_]
        inside = (wanted - before[bin_]) * (high - low) // there if there else 0
        cuts.append(max(cuts[-1], low + inside))
    return np.array([*cuts, known[-1]], np.int64)
