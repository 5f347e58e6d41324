"""Messages cut into pieces: MPI counts with numbers of 32 bits.

Both ends cut a message alike, because both know its length or recognise its
last piece.  MPI keeps messages of one tag in order.  `allgather_bytes` is an
all-gather made of such messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: The longest message, in bytes; tests make it shorter, so it is read at each use.
LONGEST: int = 1 << 30


def cut(nbytes: int, longest: int | None = None) -> list[slice]:
    """Cut a message of a length that both ends know.

    Local.

    Parameters
    ----------
    nbytes : int
        Its length.
    longest : int, optional
        The longest piece; `LONGEST` if not given.

    Returns
    -------
    list of slice
        One at least.
    """
    step = longest or LONGEST
    return [slice(low, min(low + step, nbytes)) for low in range(0, max(nbytes, 1), step)]


def cut_openly(nbytes: int, longest: int | None = None) -> list[slice]:
    """Cut a message of a length that its receiver may not know.

    Local.  After a piece of ``longest`` bytes another one follows: the last
    piece is shorter, and may be empty.

    Parameters
    ----------
    nbytes : int
        Its length.
    longest : int, optional
        The longest piece; `LONGEST` if not given.

    Returns
    -------
    list of slice
        One at least.
    """
    step = longest or LONGEST
    ends = [*range(step, nbytes + 1, step), nbytes]
    return [slice(low, high) for low, high in zip([0, *ends], ends, strict=False)]


def is_long(nbytes: int) -> bool:
    """Tell whether a collective is too long for the library: counts reach 2^31.

    Local.

    Parameters
    ----------
    nbytes : int
        Of all blocks of the call, as all ranks know them.
    """
    return nbytes >= 2 * LONGEST


Bytes = NDArray[np.uint8]


def allgather_bytes(
    own: Bytes,
    counts: NDArray[np.int64],
    rank: int,
    move: Callable[[int, Bytes, int, Bytes], object],
) -> Bytes:
    """Give all ranks the bytes of all, doubling each rank's share a step.

    Collective.  For messages that may hang in the library's all-gather, see
    `closeranks.comms.mpi.ulfm.BRIEF_BYTES`.

    Parameters
    ----------
    own : ndarray of uint8
        Bytes of this rank.
    counts : ndarray of int64, shape (ranks,)
        How many each rank has.
    rank : int
        This one.
    move : callable
        Sends to a rank and receives from another; over when it returns.

    Returns
    -------
    ndarray of uint8
        Bytes of all ranks, in rank order.

    References
    ----------
    Bruck and others, Efficient Algorithms for All-to-All Communications in
    Multiport Message-Passing Systems, IEEE Trans. Parallel Distrib. Syst. 8
    (1997), the concatenation.
    """
    size, known = len(counts), 1
    # In a ring that begins with this rank, the bytes it has are always the front.
    stops = np.cumsum(np.roll(counts, -rank)).tolist()
    ring = np.empty(stops[-1], np.uint8)
    ring[: own.size] = own
    while known < size:
        last = min(2 * known, size)
        sent, room = ring[: stops[last - known - 1]], ring[stops[known - 1] : stops[last - 1]]
        move((rank - known) % size, sent, (rank + known) % size, room)
        known = last
    return np.roll(ring, int(counts[:rank].sum()))
