"""Factors by which workers are slow: an array, or a model that gives one."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.number_argument import (
    LARGEST,
    SMALLEST,
    real_numbers,
)
from closeranks.comms import argument
from closeranks.errors import UsageError

Factors = NDArray[np.float64]


@runtime_checkable
class StragglerModel(Protocol):
    """Anything that gives factors."""

    def factors(self, rounds: int, n: int) -> Factors:
        """Give round, worker -> how many times longer its work takes than usual."""


def read_factors(where: str, delays: Any, rounds: int, n: int) -> Factors:
    """Read how slow workers are in some rounds.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    delays : array_like, shape (rounds or more, n), or StragglerModel
        Factors, or what gives them.
    rounds, n : int
        Rounds and workers.

    Returns
    -------
    ndarray, shape (rounds, n), dtype float64
        The factors of the first rounds.

    Raises
    ------
    UsageError
        If the shape is another one, or a factor is not from 1e-50 to 1e50.
    """
    if isinstance(delays, StragglerModel):
        found = delays.factors(rounds, n)
    else:
        found = as_factors(where, delays)
    if found.shape[0] < rounds or found.shape[1] != n:
        problem = f"delays of {found.shape[0]} rounds and {found.shape[1]} workers"
        raise UsageError(where, problem, f"give {rounds} rounds or more of {n} workers")
    return found[:rounds]


def as_factors(where: str, delays: Any) -> Factors:
    """Read an array of factors.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    delays : array_like, shape (rounds, n)
        Round, worker -> factor.

    Returns
    -------
    ndarray, shape (rounds, n), dtype float64
        The same.

    Raises
    ------
    UsageError
        If it has no such shape, or elements that are no real numbers, or a
        factor is not from 1e-50 to 1e50.
    """
    remedy = "give an array of shape (rounds, workers), or a model with factors()"
    try:
        found = real_numbers(delays)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(where, f"delays is {argument.shown(delays)}", remedy) from None
    if found.ndim != 2 or not found.size:
        raise UsageError(where, f"delays has shape {found.shape}", remedy)
    wrong = ~((found >= SMALLEST) & (found <= LARGEST))
    if wrong.any():
        round, worker = (int(axis[0]) for axis in np.nonzero(wrong))
        problem = f"the factor of worker {worker} in round {round + 1} is {found[round, worker]}"
        remedy = f"give factors from {SMALLEST:g} to {LARGEST:g}; 1 is the usual speed"
        raise UsageError(where, problem, remedy)
    return found
