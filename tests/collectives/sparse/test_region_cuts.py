"""Where the index space is cut: regions of about as many pairs, wherever these lie."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.sparse.region_cuts import first_edges, histogram, region_cuts

Ints = np.ndarray


def _cuts(ranks: list[Ints], length: int, regions: int) -> Ints:
    """Cut on all ranks at once: the ranks' histograms are added as they ask for it."""
    everything = np.sort(np.concatenate(ranks))

    edges = first_edges(length, regions)

    class Adding:
        """Add over ranks: here the histogram of all indices with the asked edges."""

        def __init__(self) -> None:
            self.rounds = 0

        def __call__(self, counts: Ints) -> Ints:
            self.rounds += 1
            return counts

    adding = Adding()
    found = region_cuts(everything, edges, histogram(everything, edges), regions, adding)
    assert adding.rounds <= 5
    return found


@pytest.mark.parametrize("length", [1, 3, 1000, 1 << 24, 1 << 40, 2**63 - 1])
@pytest.mark.parametrize("regions", [1, 2, 7, 64])
@pytest.mark.parametrize("where", ["everywhere", "an eighth", "a thousand", "two ends", "none"])
def test_regions_have_about_as_many_pairs(length: int, regions: int, where: str) -> None:
    draw = np.random.default_rng(regions)
    spans = {
        "everywhere": [(0, length)],
        "an eighth": [(length // 2, max(length // 8, 1))],
        "a thousand": [(length // 3, min(length - length // 3, 100_000))],
        "two ends": [(0, max(length // 1000, 1)), (length - 1, 1)],
        "none": [],
    }[where]
    taken = [low + draw.integers(0, span, 5000) for low, span in spans]
    indices = np.unique(np.concatenate([*taken, np.empty(0, np.int64)]).astype(np.int64))
    cuts = _cuts([indices], length, regions)
    assert cuts.shape == (regions + 1,)
    assert (cuts[0], cuts[-1]) == (0, length)
    assert (np.diff(cuts) >= 0).all()
    share = len(indices) / regions
    if len(indices) >= 1024:
        assert histogram(indices, cuts).max() <= 1.6 * share + 40
