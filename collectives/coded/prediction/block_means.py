"""How sure a mean is whose values follow one another."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
#: Blocks whose means are compared.
_BLOCKS: Final = 20
_LEAST_BLOCKS: Final = 4
#: Series that are drawn for an interval.
_DRAWN: Final = 1000


def standard_error(values: Values) -> float:
    """Give the standard error of a mean.

    Local and pure.  Values of neighbours may depend on each other: the means of
    20 blocks, or fewer, are taken as independent (Schmeiser, "Batch size effects
    in the analysis of simulation output", 1982).

    Parameters
    ----------
    values : ndarray, shape (rounds,)
        One a round.

    Returns
    -------
    float
        Infinity if there are fewer than 4 values.
    """
    blocks = min(_BLOCKS, len(values))
    if blocks < _LEAST_BLOCKS:
        return math.inf
    length = len(values) // blocks
    means = values[: blocks * length].reshape(blocks, length).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(blocks))


def mean_interval(values: Values, *, share: float = 0.95) -> tuple[float, float]:
    """Give an interval that holds the mean of such values.

    Local and pure, the same each time: moving blocks are drawn at random with a
    fixed seed (Kuensch, "The jackknife and the bootstrap for general stationary
    observations", 1989).  Their length is twice the cube root of the number of
    values.

    Parameters
    ----------
    values : ndarray, shape (rounds,)
        One a round; neighbours may depend on each other.
    share : float, optional
        Of the drawn means that are inside.

    Returns
    -------
    low, high : float
        Its ends.
    """
    count = len(values)
    length = min(count, max(1, round(2 * count ** (1 / 3))))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means = (sums[length:] - sums[:-length]) / length
    drawn = np.random.default_rng(0).integers(len(means), size=(_DRAWN, -(-count // length)))
    found = means[drawn].mean(axis=1)
    low, high = np.quantile(found, [(1 - share) / 2, (1 + share) / 2]).tolist()
    return low, high
