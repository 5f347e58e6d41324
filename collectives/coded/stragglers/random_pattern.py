"""Patterns of late workers: read from a caller, or drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import number
from closeranks.comms import argument
from closeranks.errors import UsageError

Pattern = NDArray[np.bool_]


def read_pattern(where: str, pattern: Any) -> Pattern:
    """Read which workers are late in which rounds.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    pattern : array_like of bool, shape (rounds, n)
        Round, worker -> whether it is late.

    Returns
    -------
    ndarray, shape (rounds, n), dtype bool
        The same.

    Raises
    ------
    UsageError
        If it has no such shape or elements.
    """
    found = np.asarray(pattern)
    if found.ndim != 2 or not found.size or found.dtype != np.bool_:
        problem = f"pattern has shape {found.shape} and dtype {found.dtype}"
        raise UsageError(where, problem, "give truth values of shape (rounds, workers)")
    return found


def random_factors(
    rounds: int,
    n: int,
    window: int,
    lam: int,
    may: Callable[[Pattern], Pattern],
    seed: int,
    slowdown: float,
) -> NDArray[np.float64]:
    """Draw a pattern round by round, and give its factors.  Local.

    In each round each worker wants to be late with probability 1/2.  In a random
    order, those that want and may are late, while the window has fewer than
    ``lam`` late workers or has this one already.

    Parameters
    ----------
    rounds, n : int
        Rounds and workers.
    window, lam : int
        In each window of rounds at most lam workers are late.
    may : callable
        The pattern of up to ``window - 1`` rounds before -> workers that may be
        late now.
    seed : int
        Of the random numbers.
    slowdown : float
        The factor of a late worker, at least 1.

    Returns
    -------
    ndarray, shape (rounds, n), dtype float64
        1, or ``slowdown``.

    Raises
    ------
    UsageError
        If rounds or n is below 1, or the slowdown below 1.
    """
    rounds = argument.whole("factors", "rounds", rounds, least=1)
    n = argument.whole("factors", "n", n, least=1)
    slowdown = number("factors", "slowdown", slowdown, least=1)
    random = np.random.default_rng(seed)
    late = np.zeros((rounds, n), bool)
    for round in range(rounds):
        before = late[max(0, round - window + 1) : round]
        wants = may(before) & (random.random(n) < 0.5)
        order = random.permutation(n)
        known = before.any(axis=0)
        # Those that are known cost nothing; of the others, as many as there is room.
        new = order[(wants & ~known)[order]][: max(0, lam - int(known.sum()))]
        late[round, wants & known] = True
        late[round, new] = True
    return np.where(late, slowdown, 1.0)
