"""Giving all ranks the bytes of all, from rank to rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def spread(
    own: Bytes,
    counts: NDArray[np.int64],
    rank: int,
    move: Callable[[int, Bytes, int, Bytes], object],
) -> Bytes:
    """Give all ranks the bytes of all, doubling what each has.

    Collective.  For what the library's own may hang with, see
    `closeranks.comms.mpi.ulfm.BRIEF_BYTES`.

    Parameters
    ----------
    own : ndarray of uint8
        Of this rank.
    counts : ndarray of int64, shape (ranks,)
        How many each rank has.
    rank : int
        This one.
    move : callable
        Sends to a rank and receives from another; over when it returns.

    Returns
    -------
    ndarray of uint8
        Those of all ranks, in their order.

    References
    ----------
    Bruck and others, Efficient Algorithms for All-to-All Communications in
    Multiport Message-Passing Systems, IEEE Trans. Parallel Distrib. Syst. 8
    (1997), the concatenation.
    """
    size, known = len(counts), 1
    # In a ring that begins with this rank what it has is always the front.
    stops = np.cumsum(np.roll(counts, -rank)).tolist()
    ring = np.empty(stops[-1], np.uint8)
    ring[: own.size] = own
    while known < size:
        last = min(2 * known, size)
        sent, room = ring[: stops[last - known - 1]], ring[stops[known - 1] : stops[last - 1]]
        move((rank - known) % size, sent, (rank + known) % size, room)
        known = last
    return np.roll(ring, int(counts[:rank].sum()))
