"""A random graph in which all vertices have equally many neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def regular_graph(n: int, d: int, seed: int) -> NDArray[np.float64]:
    """Draw a random regular graph without loops; connected if ``d`` is above 1.

    Source: Steger and Wormald, "Generating random regular graphs quickly",
    Combinatorics, Probability and Computing 8, 1999: ends of edges are paired at
    random, and pairs that would make a loop or an edge twice are paired anew.
    Departures: graphs that are not connected are drawn anew; with more than ``n /
    2`` neighbours the edges left out are drawn.

    Parameters
    ----------
    n : int
        Vertices.
    d : int
        Neighbours of each, below ``n``; ``n * d`` is even.
    seed : int
        Of NumPy's generator PCG64.

    Returns
    -------
    ndarray, shape (n, n), dtype float64
        The adjacency matrix.
    """
    random = np.random.default_rng(seed)
    if 2 * d >= n:
        left_out = _pairs(n, n - 1 - d, random)
        return 1.0 - left_out - np.eye(n)
    while True:
        graph = _pairs(n, d, random)
        if d == 1 or _connected(graph):
            return graph.astype(np.float64)


def _pairs(n: int, d: int, random: np.random.Generator) -> NDArray[np.bool_]:
    """Pair the ends of edges until all have a partner."""
    while True:
        graph = np.zeros((n, n), np.bool_)
        ends = np.repeat(np.arange(n), d)
        while ends.size:
            ends = random.permutation(ends)
            left = []
            for a, b in ends.reshape(-1, 2).tolist():
                if a == b or graph[a, b]:
                    left += [a, b]
                else:
                    graph[a, b] = graph[b, a] = True
            ends = np.array(left, np.int64)
            open_ends = np.unique(ends)
            if not (~graph[np.ix_(open_ends, open_ends)]).sum() > open_ends.size:
                break  # no two of them may be joined
        if not ends.size:
            return graph


def _connected(graph: NDArray[np.bool_]) -> bool:
    seen = graph[0]
    while True:
        more = seen | graph[seen].any(axis=0)
        if (more == seen).all():
            return bool(seen.all())
        seen = more
