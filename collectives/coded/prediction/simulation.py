"""How long rounds would take: schemes against slow workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.prediction.carry_over import (
    Abandon,
    Rounds,
    follow_groups,
    follow_one_task,
    follow_tasks,
)
from closeranks.collectives.coded.prediction.deadline_rule import follow_deadline
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.stragglers.delay_factors import StragglerModel, read_factors
from closeranks.collectives.coded.stragglers.number_argument import check_work, number
from closeranks.comms import argument
from closeranks.errors import UsageError

Stop = Literal["decodable", "deadline"]


@dataclass(frozen=True)
class Result:
    """What a simulation has found.

    Attributes
    ----------
    seconds : float
        Of all rounds together.
    rounds, jobs : int
        How many rounds there were, and how many jobs were over by their end.
    waits : int
        Rounds that lasted until all workers had finished, though some were late.
    per_round : ndarray, shape (rounds,)
        Seconds of each round.
    """

    seconds: float
    rounds: int
    jobs: int
    waits: int
    per_round: NDArray[np.float64]


def simulate(
    scheme_or_code: Scheme | GradientCode,
    delays: StragglerModel | Any,
    *,
    rounds: int,
    fixed_s: float = 0,
    compute_s: float = 1,
    stop: Stop = "decodable",
    mu: float = 1.0,
    abandon: Abandon = "part",
) -> Result:
    """Simulate the rounds of a scheme with workers that are slow at times.

    Local and pure.  In each round worker i computes for ``(fixed_s + compute_s *
    load) * factor`` seconds, where ``load`` is the share of a batch that its
    tasks of the round are.  Messages take no time.

    Parameters
    ----------
    scheme_or_code : Scheme or GradientCode
        A scheme before its first round, which is left as it is; a code is
        taken as `GradientCoding.of` does.
    delays : array_like, shape (rounds or more, n), or a model
        Round, worker -> factor; or an object that has ``.factors(rounds, n)``.
    rounds : int
        How many.
    fixed_s, compute_s : float, optional
        Seconds of a round without any work, and of a whole batch more.
    stop : {"decodable", "deadline"}, optional
        When a round ends.  "decodable": as soon as the scheme waits for nobody.
        "deadline": as in the program of the authors of sequential gradient
        coding (Krishnan, Ebrahimi, Khisti, ICLR 2023): workers later than
        ``1 + mu`` times the fastest are late; if the scheme's model of
        stragglers allows for them, the round ends at that time, or earlier if
        nobody is late; else it lasts until all have finished.  Every round
        begins afresh.  Departure: a code may have s late workers; theirs had
        to have fewer.
    mu : float, optional
        Who takes longer than ``1 + mu`` times the fastest is late.
    abandon : {"part", "never", "now"}, optional
        With "decodable": what a late worker does when a round ends.  "part": it
        ends its micro-batch, and begins the next round late; micro-batches are
        as long as uncoded ones, `Scheme.micro` in ``1 / n`` of a batch.
        "never": it ends all its work of the round.  "now": it stops at once.

    Returns
    -------
    Result
        Seconds, and how many jobs were done.

    Raises
    ------
    UsageError
        If an argument is not as said.

    Examples
    --------
    >>> from closeranks.collectives.coded import Repetition, Uncoded, simulate
    >>> slow = [[1, 1, 1, 5]] * 10
    >>> simulate(Uncoded(4), slow, rounds=10, compute_s=4).seconds
    50.0
    >>> simulate(Repetition(4, 1), slow, rounds=10, compute_s=4).seconds
    20.0
    """
    where = "simulate"
    scheme = _scheme(scheme_or_code)
    rounds = argument.whole(where, "rounds", rounds, least=1)
    _check(where, "stop", stop, ("decodable", "deadline"))
    _check(where, "abandon", abandon, ("part", "never", "now"))
    fixed_s = number(where, "fixed_s", fixed_s)
    compute_s = number(where, "compute_s", compute_s)
    mu = number(where, "mu", mu)
    check_work(where, fixed_s, compute_s)
    if rounds <= scheme.delay:
        problem = f"{rounds} rounds, and the first job is over after {scheme.delay + 1}"
        raise UsageError(where, problem, "give more rounds")
    factors = read_factors(where, delays, rounds, scheme.n)
    if stop == "deadline":
        found = follow_deadline(scheme, factors, fixed_s, compute_s, mu)
    else:
        found = _followed(scheme, factors, fixed_s, compute_s, abandon, mu)
    return Result(
        float(found.per_round.sum()),
        rounds,
        rounds - scheme.delay,
        int(found.waited.sum()),
        found.per_round,
    )


def _followed(
    scheme: Scheme, factors: NDArray[np.float64], fixed_s: float, compute_s: float,
    abandon: Abandon, mu: float,
) -> Rounds:  # fmt: skip
    """Follow a scheme whose rounds end when it waits for nobody."""
    if isinstance(scheme, PartialRepetition):
        return follow_groups(scheme, factors, fixed_s, compute_s, abandon, mu)
    if isinstance(scheme, OneTask):
        return follow_one_task(scheme, factors, fixed_s, compute_s, abandon, mu)
    return follow_tasks(scheme.copy(), factors, fixed_s, compute_s, abandon, mu)


def _scheme(given: Any) -> Scheme:
    """Read a scheme, or the scheme of a code."""
    if isinstance(given, GradientCode):
        return GradientCoding.of(given)
    if not isinstance(given, Scheme):
        problem = f"scheme_or_code is {argument.shown(given)}"
        raise UsageError("simulate", problem, "give a scheme, such as Uncoded(n), or a code")
    return given


def _check(where: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(
            where, f"{name} is {argument.shown(value)}", f"give one of {', '.join(allowed)}"
        )
