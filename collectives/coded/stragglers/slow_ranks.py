"""Which ranks are slow for good, which at times, and for how long."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.bursty import Bursty

#: A rank whose median is so many times that of the others is slow for good.
CHRONIC: Final = 1.2
#: A rank is late in a round in which it takes so many times its own usual time.
LATE: Final = 1.5
#: The longest window that is looked at.
_MOST_WINDOW: Final = 8


class SlowRanks(NamedTuple):
    """What factors tell of ranks.

    Attributes
    ----------
    usual : ndarray, shape (n,)
        Rank -> its median factor, as a multiple of the median of these.
    chronic : tuple of int
        Ranks that are slow for good, ascending.
    late : ndarray of bool, shape (rounds, n)
        Round, rank -> whether it took much longer than usual for it.
    """

    usual: NDArray[np.float64]
    chronic: tuple[int, ...]
    late: NDArray[np.bool_]

    @property
    def bursty(self) -> tuple[int, ...]:
        """Ranks that were late at times, those that were so most often first."""
        counts = self.late.sum(axis=0)
        order = np.argsort(-counts, kind="stable")
        return tuple(order[counts[order] > 0].tolist())


def slow_ranks(factors: NDArray[np.float64]) -> SlowRanks:
    """Look at factors.

    Local and pure.  A rank is slow for good if its median is, in the first half
    of the rounds and in the second.

    Parameters
    ----------
    factors : ndarray, shape (rounds, n)
        Round, rank -> how slow it was.

    Returns
    -------
    SlowRanks
        What was found.
    """
    half = max(1, len(factors) // 2)
    usual = _usual(factors)
    slow = (_usual(factors[:half]) >= CHRONIC) & (_usual(factors[-half:]) >= CHRONIC)
    own = np.median(factors, axis=0)
    return SlowRanks(usual, tuple(np.flatnonzero(slow).tolist()), factors > LATE * own)


def burst_lengths(late: NDArray[np.bool_]) -> dict[int, int]:
    """Count the bursts of late rounds.

    Local and pure.

    Parameters
    ----------
    late : ndarray of bool, shape (rounds, n)
        Round, rank -> whether it was late.

    Returns
    -------
    dict of int to int
        Rounds that follow each other -> how many such bursts, ascending.
    """
    edges = np.zeros((1, late.shape[1]), np.int8)
    steps = np.diff(late.astype(np.int8), axis=0, prepend=edges, append=edges).T
    lengths = np.nonzero(steps == -1)[1] - np.nonzero(steps == 1)[1]
    found, counts = np.unique(lengths, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def fit_bursty(late: NDArray[np.bool_], *, coverage: float = 0.95) -> Bursty:
    """Estimate the parameters of the bursty model.

    Local and pure.  B is the least length that so many of the bursts have at
    most; W the largest, up to 8 rounds, with which so many late rounds are less
    than B, or W or more after each late one of the same rank; lam is the least
    number that so many windows of W rounds have at most.

    Parameters
    ----------
    late : ndarray of bool, shape (rounds, n)
        Round, rank -> whether it was late.
    coverage : float, optional
        How many of all: a pattern as a whole is admitted only with 1.

    Returns
    -------
    Bursty
        The model; with B = 1, W = 2 and lam = 0 if nobody was late.
    """
    lengths = burst_lengths(late)
    total = sum(lengths.values())
    if not total:
        return Bursty(1, 2, 0)
    B, met = 1, 0
    for length, count in lengths.items():
        if met >= coverage * total:
            break
        B, met = length, met + count
    W = B + 1
    allowed = (1 - coverage) * int(late.sum())
    broken = 0
    for apart in range(B, min(_MOST_WINDOW, len(late))):
        broken += int((late[apart:] & late[:-apart]).sum())
        if broken > allowed:
            break
        W = apart + 1
    W = max(W, B + 1)
    windows = sliding_window_view(late, min(W, len(late)), axis=0).any(axis=-1).sum(axis=1)
    return Bursty(B, W, int(np.quantile(windows, coverage, method="higher")))


def _usual(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    medians = np.median(factors, axis=0)
    return np.asarray(medians / np.median(medians))
