"""When a round ends, from the times at which workers would finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.collectives.coded.schemes.backup import Backup
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares

Times = NDArray[np.float64]
RoundEnd = Callable[[Times], float]
#: Schemes whose rounds last until all have finished that have work.
_WAIT_FOR_ALL: Final = (Uncoded, UnequalShares)


def round_end(scheme: Scheme, busy: NDArray[np.bool_]) -> RoundEnd:
    """Give the rule for the end of a round whose workers have one task each.

    Local and pure.  The rules of the schemes of this package are written out, to
    be fast; any other scheme is asked, see `first_enough`.

    Parameters
    ----------
    scheme : Scheme
        Every round is as its first one.
    busy : ndarray of bool, shape (n,)
        Workers that have tasks.

    Returns
    -------
    callable
        Finish times of all workers -> the end of the round.
    """
    if type(scheme) in _WAIT_FOR_ALL:
        return lambda finish: float(finish[busy].max())
    if type(scheme) is Backup:
        needed = scheme.n - scheme.s - 1
        return lambda finish: float(np.partition(finish, needed)[needed])
    if type(scheme) is GradientCoding and isinstance(scheme.code, GroupCode):
        return _end_by_groups(np.array([scheme.code.group(worker) for worker in range(scheme.n)]))
    return lambda finish: first_enough(scheme, 1, finish, busy)


def first_enough(
    scheme: Scheme, round: int, finish: Times, busy: NDArray[np.bool_]
) -> float:  # fmt: skip
    """Ask a scheme when a round may end.  Local; calls nothing but `may_end`.

    Parameters
    ----------
    scheme : Scheme
        The scheme; with more workers that have finished, it waits for no more.
    round : int
        Which round.
    finish : ndarray, shape (n,)
        Worker -> when it would finish.
    busy : ndarray of bool, shape (n,)
        Workers that have tasks.

    Returns
    -------
    float
        The earliest time at which the workers that have finished are enough.
    """
    idle = np.flatnonzero(~busy).tolist()
    order = np.flatnonzero(busy)
    order = order[np.argsort(finish[order], kind="stable")]
    low, high = 0, len(order)  # so many are enough: more than low, at most high
    if scheme.may_end(round, set(idle)):
        return float(finish[order[0]]) if len(order) else 0.0
    while high - low > 1:
        middle = (low + high) // 2
        if not scheme.may_end(round, {*idle, *order[:middle].tolist()}):
            low = middle
        else:
            high = middle
    return float(finish[order[high - 1]])


def _end_by_groups(groups: NDArray[np.intp]) -> RoundEnd:
    """Give the rule of a code of groups: each waits for its first worker."""
    order = np.argsort(groups, kind="stable")
    firsts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return lambda finish: float(np.minimum.reduceat(finish[order], firsts).max())
