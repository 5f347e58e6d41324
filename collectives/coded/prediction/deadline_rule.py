"""Rounds that end at a multiple of the time of the fastest worker.

This is the rule of the program of the authors of sequential gradient coding:
Krishnan, Ebrahimi, Khisti, ICLR 2023.  Workers that take longer than
``1 + mu`` times the fastest are late.  If the scheme's model of stragglers
allows for them, the round ends without them; else it waits for all, and nobody
was late.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.collectives.coded.prediction.carry_over import Rounds, Times, tell, work_of
from closeranks.collectives.coded.prediction.late_patterns import (
    late_bits,
    multiplexed_waits,
    repeating_waits,
)
from closeranks.collectives.coded.schemes.multiplexed import MSGC
from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.selective_repetition import SRSGC
from closeranks.errors import UsageError


def follow_deadline(
    scheme: Scheme, factors: Times, fixed_s: float, compute_s: float, mu: float
) -> Rounds:
    """Follow a scheme by the rule of the authors.

    Local.  Every round begins afresh: late workers take nothing along.

    Parameters
    ----------
    scheme : Scheme
        Before its first round; it is left as it is.
    factors : ndarray, shape (rounds, n)
        How slow the workers are.
    fixed_s, compute_s : float
        Seconds of a round without work, and of a whole batch more.
    mu : float
        Who takes ``1 + mu`` times as long as the fastest is late.

    Returns
    -------
    Rounds
        How long they took.

    Raises
    ------
    UsageError
        If the tasks of the scheme are no whole ones.
    """
    if isinstance(scheme, PartialRepetition):
        problem = "PartialRepetition has no rule for a deadline"
        raise UsageError("simulate", problem, "give stop='decodable'")
    if isinstance(scheme, (MSGC, SRSGC)) and _has_even_tasks(scheme):
        return _by_pattern(scheme, factors, fixed_s, compute_s, mu)
    if not isinstance(scheme, OneTask):
        return _by_tasks(scheme.copy(), factors, fixed_s, compute_s, mu)
    load = work_of(scheme, 1).load
    busy = load > 0
    times = ((fixed_s + compute_s * load) * factors)[:, busy]
    workers = np.flatnonzero(busy)
    deadline, longest = (1 + mu) * times.min(axis=1), times.max(axis=1)
    late = times > deadline[:, None]
    waited = np.zeros(len(factors), bool)
    for round in np.flatnonzero(late.any(axis=1)).tolist():
        waited[round] = not conforms(scheme, round + 1, set(workers[late[round]].tolist()))
    return _rounds(deadline, longest, waited)


def _has_even_tasks(scheme: MSGC | SRSGC) -> bool:
    """Tell whether all tasks are of one size, and each worker has one in each slot."""
    if scheme.code is None:
        return False
    sizes = np.count_nonzero(scheme.code.matrix, axis=1)
    return bool((sizes == sizes[0]).all())


def _by_pattern(
    scheme: MSGC | SRSGC, factors: Times, fixed_s: float, compute_s: float, mu: float
) -> Rounds:
    """Follow a scheme whose loads do not depend on deliveries."""
    load = np.full(len(factors), scheme.load)
    if isinstance(scheme, MSGC):  # the first rounds have tasks of fewer jobs
        slots = scheme.delay + 1
        load *= np.minimum(np.arange(1, len(factors) + 1), slots) / slots
    times = (fixed_s + compute_s * load)[:, None] * factors
    deadline, longest = (1 + mu) * times.min(axis=1), times.max(axis=1)
    late = late_bits(times > deadline[:, None])
    if isinstance(scheme, MSGC):
        waited = multiplexed_waits(late, scheme.B, scheme.W, scheme.lam)
    else:
        groups = _group_bits(scheme)
        waited = repeating_waits(late, scheme.B, scheme.W, scheme.lam, scheme.s, groups)
    return _rounds(deadline, longest, waited)


def _group_bits(scheme: SRSGC) -> list[int] | None:
    """Give the bits of the workers of each group, if the inner code has groups."""
    if not isinstance(scheme.code, GroupCode):
        return None
    groups = [0] * scheme.code.n_groups
    for worker in range(scheme.n):
        groups[scheme.code.group(worker)] |= 1 << worker
    return groups


def conforms(scheme: Scheme, round: int, late: set[int]) -> bool:
    """Ask a scheme whether a round may end without some workers.  Local.

    Parameters
    ----------
    scheme : Scheme
        The scheme; one that has no ``conforms`` is asked whether it may end.
    round : int
        Which round.
    late : set of int
        The workers.

    Returns
    -------
    bool
        Whether it may.
    """
    asked: Callable[[int, set[int]], bool] | None = getattr(scheme, "conforms", None)
    if asked is not None:
        return asked(round, late)
    return scheme.may_end(round, set(range(scheme.n)) - late)


def _by_tasks(
    scheme: Scheme, factors: Times, fixed_s: float, compute_s: float, mu: float
) -> Rounds:  # fmt: skip
    """Follow any scheme of whole tasks, telling it each delivery."""
    deadlines, longest, waited = [], [], []
    for round, slow in enumerate(factors, 1):
        times = (fixed_s + compute_s * work_of(scheme, round).load) * slow
        deadline = (1 + mu) * float(times.min())
        late = times > deadline
        fits = not late.any() or conforms(scheme, round, set(np.flatnonzero(late).tolist()))
        tell(scheme, round, ~late if fits else np.ones(scheme.n, bool))
        deadlines.append(deadline)
        longest.append(float(times.max()))
        waited.append(not fits)
    return _rounds(np.array(deadlines), np.array(longest), np.array(waited, bool))


def _rounds(deadline: Times, longest: Times, waited: NDArray[np.bool_]) -> Rounds:
    """Give how long rounds took: up to the deadline, where they did not wait."""
    return Rounds(np.where(waited, longest, np.minimum(deadline, longest)), waited)
