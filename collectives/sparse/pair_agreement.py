"""What ranks tell each other before pairs travel: one short sum over all ranks.

It holds how many pairs there are and where they lie, and a digest of what
ranks must agree on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.sparse.agreed_numbers import agreed_sum, summed
from closeranks.collectives.sparse.region_cuts import first_edges, histogram, region_cuts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs

Ints = NDArray[np.int64]


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
    if service.size == 1:
        return len(pairs.indices), np.array([0, pairs.length])
    edges = first_edges(pairs.length, regions)
    counts = agreed_sum(service, operation, said, histogram(pairs.indices, edges))
    add = partial(summed, service)
    return int(counts.sum()), region_cuts(pairs.indices, edges, counts, regions, add)
