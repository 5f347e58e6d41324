"""Rounds one after the other, where late workers take time along.

A worker begins a round when the round begins, or when it has ended what is
left of an earlier one, whichever is later.  A round that is over by then it
leaves out.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.prediction.helping import group_round
from closeranks.collectives.coded.prediction.round_ends import RoundEnd, first_enough, round_end
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme

Times = NDArray[np.float64]
Abandon = Literal["part", "never", "now"]
#: Of a piece: who is nearer to the end of one has ended it.
_NEAR: Final = 1e-9


class Rounds(NamedTuple):
    """How long rounds took.

    Attributes
    ----------
    per_round : ndarray, shape (rounds,)
        Seconds.
    waited : ndarray of bool, shape (rounds,)
        Whether a round lasted until every worker had finished, though some were
        late.
    """

    per_round: Times
    waited: NDArray[np.bool_]


class RoundWork(NamedTuple):
    """The work of a round.

    Attributes
    ----------
    load : ndarray, shape (n,)
        Worker -> share of the batch.
    pieces : ndarray, shape (n,)
        Worker -> micro-batches of it, at least 1.
    """

    load: Times
    pieces: Times


def work_of(scheme: Scheme, round: int) -> RoundWork:
    """Add up the tasks of a round.

    Local.  Micro-batches are as long as uncoded ones: `Scheme.micro` for each
    ``1 / n`` of the batch.

    Parameters
    ----------
    scheme : Scheme
        Of whole tasks.
    round : int
        The next one.

    Returns
    -------
    RoundWork
        Of all workers.
    """
    counts = [sum(len(task.parts) for task in mine) for mine in scheme.tasks(round)]
    load = np.array(counts) / scheme.parts
    return RoundWork(load, np.maximum(1, np.round(scheme.micro * scheme.n * load)))


def follow_one_task(
    scheme: Scheme, factors: Times, fixed_s: float, compute_s: float, abandon: Abandon, mu: float
) -> Rounds:
    """Follow a scheme whose rounds are all alike, and know nothing of each other.

    Local.

    Parameters
    ----------
    scheme : Scheme
        Of delay 0; each worker has one task.
    factors : ndarray, shape (rounds, n)
        How slow the workers are.
    fixed_s, compute_s : float
        Seconds of a round without work, and of a whole batch more.
    abandon : {"part", "never", "now"}
        When a late worker stops.
    mu : float
        Who takes ``1 + mu`` times as long as the fastest is late.

    Returns
    -------
    Rounds
        How long they took.
    """
    work = work_of(scheme, 1)
    busy = work.load > 0
    ends = round_end(scheme, busy)
    durations = np.where(busy, fixed_s + compute_s * work.load, 0.0) * factors
    clock = _Clock(scheme.n, abandon, mu)
    for duration in durations:
        clock.round(duration, work.pieces, busy, ends)
    return clock.rounds()


def follow_tasks(
    scheme: Scheme, factors: Times, fixed_s: float, compute_s: float, abandon: Abandon, mu: float
) -> Rounds:
    """Follow any scheme of whole tasks by its own rules.

    Local.  A worker that is late in a round delivers nothing of it.  Jobs go on
    until the end: all rounds but the first ones are full.

    Parameters
    ----------
    scheme : Scheme
        Before its first round; it is left after the last one.
    factors, fixed_s, compute_s, abandon, mu
        As of `follow_one_task`.

    Returns
    -------
    Rounds
        How long they took.
    """
    clock = _Clock(scheme.n, abandon, mu)
    for round, slow in enumerate(factors, 1):
        work = work_of(scheme, round)
        busy = work.load > 0
        duration = np.where(busy, fixed_s + compute_s * work.load, 0.0) * slow

        def ends(finish: Times, round: int = round, busy: NDArray[np.bool_] = busy) -> float:
            return first_enough(scheme, round, finish, busy)

        in_time = clock.round(duration, work.pieces, busy, ends)
        tell(scheme, round, in_time)
    return clock.rounds()


def tell(scheme: Scheme, round: int, in_time: NDArray[np.bool_]) -> None:
    """Tell a scheme who has delivered in a round: all tasks, or none.

    Local.

    Parameters
    ----------
    scheme : Scheme
        The scheme.
    round : int
        Which round.
    in_time : ndarray of bool, shape (n,)
        Workers that have delivered.
    """
    tasks = scheme.tasks(round)
    for worker, (mine, there) in enumerate(zip(tasks, in_time.tolist(), strict=True)):
        scheme.deliver(round, worker, mine if there else ())
    if round > scheme.delay:
        scheme.forget(round - scheme.delay)


class _Clock:
    """When workers are free, round after round."""

    def __init__(self, n: int, abandon: Abandon, mu: float) -> None:
        self._free, self._now = np.zeros(n), 0.0
        self._abandon, self._mu = abandon, mu
        self._per_round: list[float] = []
        self._waited: list[bool] = []

    def rounds(self) -> Rounds:
        """Give the rounds so far."""
        return Rounds(np.array(self._per_round), np.array(self._waited, bool))

    def round(
        self, duration: Times, pieces: Times, busy: NDArray[np.bool_], ends: RoundEnd
    ) -> NDArray[np.bool_]:
        """Let a round pass; give the workers that have finished in it."""
        start = np.maximum(self._free, self._now)
        finish = start + duration
        end = ends(finish)
        late = busy & (finish > end)
        if late.any():
            self._free[late] = self._freed(late, start, duration, pieces, end)
        took = finish[busy] - self._now
        self._waited.append(
            not late.any() and bool(took.max(initial=0) > (1 + self._mu) * took.min(initial=np.inf))
        )
        self._per_round.append(end - self._now)
        self._now = end
        return ~late

    def _freed(
        self, late: NDArray[np.bool_], start: Times, duration: Times, pieces: Times, end: float
    ) -> Times:
        """Give when late workers are free."""
        begin, whole = start[late], duration[late]
        if self._abandon == "now":
            return np.full(len(begin), end)
        if self._abandon == "never":
            return np.where(begin < end, begin + whole, begin)
        piece = whole / pieces[late]
        begun = np.where(begin < end, np.floor((end - begin) / piece + _NEAR) + 1, 0)
        return begin + np.minimum(begun, pieces[late]) * piece


def follow_groups(
    scheme: PartialRepetition, factors: Times, fixed_s: float, compute_s: float,
    abandon: Abandon, mu: float,
) -> Rounds:  # fmt: skip
    """Follow groups whose workers help each other.

    Local.  A worker begins to help when it has had nothing left of its own for
    as long as a micro-batch takes at factor 1.

    Parameters
    ----------
    scheme : PartialRepetition
        The scheme.
    factors, fixed_s, compute_s, abandon, mu
        As of `follow_one_task`.

    Returns
    -------
    Rounds
        How long they took.
    """
    micro = scheme.micro
    share_s = fixed_s + compute_s / scheme.n
    grace = share_s / micro
    bounds = [(group[0], group[-1] + 1) for group in scheme.groups]
    firsts = [first for first, _ in bounds]
    free, now = np.zeros(scheme.n), 0.0
    per_round, waited = [], []
    for slow in factors:
        start, piece = np.maximum(free, now), share_s / micro * slow
        own = start + micro * piece
        latest = np.maximum.reduceat(own, firsts)
        helped = latest > np.minimum.reduceat(own, firsts) + grace
        free = own.copy()
        for number in np.flatnonzero(helped).tolist():
            a, b = bounds[number]
            latest[number], free[a:b] = group_round(
                start[a:b].tolist(), piece[a:b].tolist(), micro, grace
            )
        end = float(latest.max())
        if abandon == "now":
            free[:] = end
        elif abandon == "never":
            # Whoever has begun its share ends it, though others have done it, too.
            free = np.where(start < end, np.maximum(free, own), free)
        took = own - now
        waited.append(bool((own <= end).all() and took.max() > (1 + mu) * took.min()))
        per_round.append(end - now)
        now = end
    return Rounds(np.array(per_round), np.array(waited, bool))
