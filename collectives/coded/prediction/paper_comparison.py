"""The comparison of the paper: sequential against plain gradient coding.

Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding for Straggler
Mitigation", ICLR 2023, measured 256 workers of a cloud and replayed them.
Here workers are slow by the model of Gilbert and Elliott, with probabilities
like those that the authors' measurements show: 4.7 % of all rounds of workers,
85 % of the bursts one round long.  The rule is theirs, see `simulate` with
``stop="deadline"``.  Loads are those of the paper, of cyclic codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.prediction.late_patterns import (
    late_bits,
    multiplexed_waits,
    repeating_waits,
)
from closeranks.collectives.coded.stragglers.gilbert_elliott import GilbertElliott
from closeranks.comms import argument

N: Final = 256
FIXED_S: Final = 1.0
COMPUTE_S: Final = 6.0
MU: Final = 1.0
#: Bounds of the search: rounds of delay, and stragglers of a code.
MOST_DELAY: Final = 3
MOST_LATE: Final = 64
#: Windows of SR-SGC, in multiples of B.
_MOST_WINDOWS: Final = 4


class _Candidate(NamedTuple):
    """A scheme with parameters.

    Attributes
    ----------
    scheme : str
        Its name.
    parameters : dict of str to int
        As its class takes them, without n.
    load : float
        Share of a batch that a worker computes in a round.
    """

    scheme: str
    parameters: dict[str, int]
    load: float


class _Schedule(NamedTuple):
    """The rounds of one seed, in units of the time of a worker that is not slow.

    Attributes
    ----------
    late : list of int
        Round -> bits of the workers after the deadline.
    counts : ndarray of int
        Round -> how many these are.
    deadline, longest : ndarray
        Round -> its end if it does not wait, and if it does.
    """

    late: list[int]
    counts: NDArray[np.int64]
    deadline: NDArray[np.float64]
    longest: NDArray[np.float64]


def paper_comparison(
    seeds: Sequence[int] = tuple(range(8)), rounds: int = 300
) -> list[dict[str, Any]]:  # fmt: skip
    """Search the best parameters of each scheme, and compare.

    Local and pure; a few seconds.

    Parameters
    ----------
    seeds : sequence of int, optional
        Of the schedules of slow workers.
    rounds : int, optional
        Of each.

    Returns
    -------
    list of dict
        A row each for ``Uncoded``, ``GradientCoding``, ``SRSGC`` and ``MSGC``:
        ``scheme``, ``parameters``, ``load``, ``seconds`` (a round, mean of the
        seeds), ``waits`` (mean rounds), ``simulated_s`` (as ``seconds``),
        ``speedup`` (against uncoded), ``below_gc`` (share of gradient coding's
        time that is saved), ``exact``.  Parameters are those with the least mean.

    Raises
    ------
    UsageError
        If there are no seeds, or not more than 3 rounds.
    """
    where = "paper_comparison"
    rounds = argument.whole(where, "rounds", rounds, least=MOST_DELAY + 1)
    argument.whole(where, "the number of seeds", len(seeds), least=1)
    schedules = [_schedule(seed, rounds) for seed in seeds]
    best: dict[str, tuple[float, float, _Candidate]] = {}
    for candidate in _candidates():
        found = [_judge(candidate, schedule) for schedule in schedules]
        seconds, waits = np.mean(found, axis=0).tolist()
        if candidate.scheme not in best or seconds < best[candidate.scheme][0]:
            best[candidate.scheme] = seconds, waits, candidate
    uncoded, coding = best["Uncoded"][0], best["GradientCoding"][0]
    return [
        {
            "scheme": name,
            "parameters": ",".join(f"{key}={value}" for key, value in found.parameters.items()),
            "load": found.load,
            "seconds": seconds,
            "simulated_s": seconds,
            "waits": waits,
            "speedup": uncoded / seconds,
            "below_gc": 1 - seconds / coding,
            "exact": True,
        }
        for name, (seconds, waits, found) in best.items()
    ]


def _candidates() -> Iterator[_Candidate]:
    """Give all schemes of the search."""
    yield _Candidate("Uncoded", {}, 1 / N)
    for s in range(1, MOST_LATE + 1):
        yield _Candidate("GradientCoding", {"s": s}, (s + 1) / N)
    for B in range(1, MOST_DELAY + 1):
        for windows in range(1, _MOST_WINDOWS + 1):
            # Of the lam with one s, the largest: the load is the same.
            for s in range(1, MOST_LATE // (windows + 1) + 1):
                parameters = {"B": B, "W": windows * B + 1, "lam": s * (windows + 1)}
                yield _Candidate("SRSGC", parameters, (s + 1) / N)
    for B in range(1, MOST_DELAY + 1):
        for W in range(B + 1, MOST_DELAY + 3 - B):
            for lam in range(1, MOST_LATE + 1):
                load = (W - 1 + B) * (lam + 1) / (N * (B + (W - 1) * (lam + 1)))
                yield _Candidate("MSGC", {"B": B, "W": W, "lam": lam}, load)


def _schedule(seed: int, rounds: int) -> _Schedule:
    """Draw the slow workers of a seed."""
    factors = GilbertElliott(0.0419, 0.15, 3, seed, jitter=0.15).factors(rounds, N)
    deadline, longest = (1 + MU) * factors.min(axis=1), factors.max(axis=1)
    late = factors > deadline[:, None]
    return _Schedule(late_bits(late), late.sum(axis=1), np.minimum(deadline, longest), longest)


def _judge(candidate: _Candidate, schedule: _Schedule) -> tuple[float, float]:
    """Give seconds a round, and how many rounds waited."""
    rounds, load = len(schedule.late), np.full(len(schedule.late), candidate.load)
    given = candidate.parameters
    if candidate.scheme == "MSGC":
        waited = multiplexed_waits(schedule.late, **given)
        slots = given["W"] - 1 + given["B"]
        load *= np.minimum(np.arange(1, rounds + 1), slots) / slots
    elif candidate.scheme == "SRSGC":
        B, W, lam = given["B"], given["W"], given["lam"]
        waited = repeating_waits(schedule.late, B, W, lam, -(-lam * B // (W - 1 + B)))
    else:
        waited = schedule.counts > given.get("s", 0)
    took = np.where(waited, schedule.longest, schedule.deadline)
    return float(((FIXED_S + COMPUTE_S * load) * took).mean()), float(waited.sum())
