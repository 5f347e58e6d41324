"""What ranks tell each other before pairs travel: one short sum over all ranks.

It holds how many pairs there are and where they lie, and a digest of what
ranks must agree on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.sparse.agreed_numbers import agreed_sum, summed
from closeranks.collectives.sparse.pair_plans import regions_of
from closeranks.collectives.sparse.pair_prices import rounded, slowness
from closeranks.collectives.sparse.region_cuts import first_edges, histogram, region_cuts

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs

Ints = NDArray[np.int64]

#: A slowness is told in such parts.
_PARTS: Final = 1000


class AgreedCuts(NamedTuple):
    """What all ranks know before pairs travel.

    Attributes
    ----------
    total : int
        Pairs of all ranks.
    cuts : ndarray of int64, shape (regions + 1,)
        Where the regions begin, and the end of the last one.
    slower : float
        How much slower kernels are than alone on a core, the mean of the ranks,
        `rounded`.
    """

    total: int
    cuts: Ints
    slower: float


def n_told(service: Service) -> int:
    """Return how many numbers a rank tells the others in `agreed_cuts`."""
    return len(first_edges(0, regions_of(service)))


def agreed_cuts(service: Service, operation: str, pairs: CanonicalPairs, said: str) -> AgreedCuts:
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

    Returns
    -------
    AgreedCuts
        The same on all ranks.

    Raises
    ------
    Disagreement
        On every rank, with the words of each.
    """
    slower = slowness(open_plans_of(service).kernel_s_per_byte)
    if service.size == 1:
        return AgreedCuts(len(pairs.indices), np.array([0, pairs.length]), rounded(slower))
    regions = regions_of(service)
    edges = first_edges(pairs.length, regions)
    told = np.append(histogram(pairs.indices, edges), round(_PARTS * slower))
    found = agreed_sum(service, operation, said, told)
    counts, mean = found[:-1], int(found[-1]) / _PARTS / service.size
    add = partial(summed, service)
    cuts = region_cuts(pairs.indices, edges, counts, regions, add)
    return AgreedCuts(int(counts.sum()), cuts, rounded(mean))
