"""Which workers have finished, as callers may give it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.comms import argument
from closeranks.errors import UsageError

#: Numbers of workers, or one truth value a worker.
WorkerSet = Iterable[int] | NDArray[np.bool_]

#: Numbers that `numbered` writes out.
MOST_NAMED: Final = 8


def workers_of(where: str, finished: Any, n: int) -> frozenset[int]:
    """Read a set of workers.  Local.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    finished : iterable of int, or ndarray of bool with shape (n,)
        Numbers of workers, or a truth value for each.
    n : int
        How many workers there are.

    Returns
    -------
    frozenset of int
        Their numbers.

    Raises
    ------
    UsageError
        If a number is outside of 0 to ``n - 1``, or the shape is another one.
    """
    if isinstance(finished, np.ndarray) and finished.dtype == np.bool_:
        if finished.shape != (n,):
            problem = f"finished has shape {finished.shape}"
            raise UsageError(where, problem, f"give {n} truth values")
        return frozenset(np.flatnonzero(finished).tolist())
    no_row = isinstance(finished, np.ndarray) and finished.ndim != 1
    if not isinstance(finished, Iterable) or no_row:
        raise UsageError(
            where, f"finished is {argument.shown(finished)}", "give the numbers of workers"
        )
    numbers = list(finished)
    if any(isinstance(one, bool) for one in numbers):
        problem = "finished has truth values and is no array"
        raise UsageError(where, problem, "give numbers of workers, or an ndarray of bool")
    return frozenset(argument.whole(where, "a worker", one, below=n) for one in numbers)


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Write numbers for a reader: ``part 3``, ``parts 0, 1``, ``no part``."""
    ascending = sorted(numbers)
    if not ascending:
        return f"no {noun}"
    first = ", ".join(map(str, ascending[:MOST_NAMED]))
    more = f", ... ({len(ascending)} in all)" if len(ascending) > MOST_NAMED else ""
    return f"{noun}{'s' if len(ascending) > 1 else ''} {first}{more}"
