"""What must have been delivered before a round may end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Workers = NDArray[np.bool_]


class RoundLimit(NamedTuple):
    """A condition on the workers that have finished a round.

    Attributes
    ----------
    job : int
        The job that is lost, or late, if it is not met.
    base, gain : ndarray of bool, shape (n,)
        The workers that count whether they have finished or not, and those that
        count if they have.
    met : callable
        Tells whether the workers that count are enough.  More workers never are
        less enough.
    """

    job: int
    base: Workers
    gain: Workers
    met: Callable[[Workers], bool]

    def allows(self, finished: Workers) -> bool:
        """Tell whether a round may end when some workers have finished."""
        return self.met(self.base | (self.gain & finished))


def attainable(limits: Sequence[RoundLimit]) -> list[RoundLimit]:
    """Leave out the conditions of jobs that are lost, whoever finishes."""
    lost = {one.job for one in limits if not one.met(one.base | one.gain)}
    return [one for one in limits if one.job not in lost]


def few_to_wait_for(limits: Sequence[RoundLimit], finished: Workers) -> set[int]:
    """Choose workers whose ends meet all conditions, none of them in vain.

    Parameters
    ----------
    limits : sequence of RoundLimit
        Conditions that can be met.
    finished : ndarray of bool, shape (n,)
        The workers that have finished.

    Returns
    -------
    set of int
        Of the sets from which no worker can be left out, one of low numbers.
    """
    then = finished.copy()
    for limit in limits:
        if limit.allows(then):
            continue
        candidates = np.flatnonzero(limit.gain & ~limit.base & ~then)
        then[candidates] = True
        for worker in candidates[::-1]:
            then[worker] = False
            then[worker] = not limit.allows(then)
    # A worker that one condition asks for may serve another one, too.
    for worker in np.flatnonzero(then & ~finished)[::-1]:
        then[worker] = False
        then[worker] = not all(limit.allows(then) for limit in limits)
    return set(np.flatnonzero(then & ~finished).tolist())
