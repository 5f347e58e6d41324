"""What ranks tell each other before pairs travel: one short sum over all ranks.

It holds how many pairs there are and where they lie, and a digest of what
ranks must agree on.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.selection.call_options import AUTO
from closeranks.collectives.sparse.region_cuts import first_edges, histogram, region_cuts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs

Ints = NDArray[np.int64]

#: A digest is compared in pieces: the sum of a piece's squares fits into 63 bits.
_PIECE_BITS: Final = 24
_PIECES: Final = 3


def agreed_cuts(
    service: Service, operation: str, pairs: CanonicalPairs, said: str, regions: int
) -> tuple[int, Ints]:
    """Compare what ranks must agree on; cut the index space.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator; of at most 2^15 ranks.
    operation : str
        What is called.
    pairs : CanonicalPairs
        Of this rank.
    said : str
        What ranks must agree on, in words.
    regions : int
        How many regions there shall be.

    Returns
    -------
    total : int
        Pairs of all ranks.
    cuts : ndarray of int64, shape (regions + 1,)
        Where the regions begin, and the end of the last one.

    Raises
    ------
    Disagreement
        On every rank, with the words of each.
    """
    size = service.size
    if size == 1:
        return len(pairs.indices), np.array([0, pairs.length])
    digest = int.from_bytes(blake2b(said.encode(), digest_size=9).digest(), "little")
    pieces = [(digest >> _PIECE_BITS * piece) % (1 << _PIECE_BITS) for piece in range(_PIECES)]
    edges = first_edges(pairs.length, regions)
    counts = histogram(pairs.indices, edges)
    add = partial(added, service)
    found = add(np.concatenate([pieces, np.square(pieces), counts]))
    for piece in range(_PIECES):
        # Equal numbers alone have the sum of squares that their sum asks for.
        if size * int(found[_PIECES + piece]) != int(found[piece]) ** 2:
            agree_equal(service.careful, operation, said)
    counts = found[2 * _PIECES :]
    cuts = region_cuts(pairs.indices, edges, counts, regions, add)
    return int(counts.sum()), cuts


def added(service: Service, numbers: Ints) -> Ints:
    """Add an array over all ranks.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    numbers : ndarray of int64
        Of this rank.

    Returns
    -------
    ndarray of int64
        A new array.
    """
    total = np.empty_like(numbers)
    service.block("allreduce", AUTO, numbers, total, MPI.SUM)
    return total
