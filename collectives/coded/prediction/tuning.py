"""The scheme that takes least time, from how slow workers were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.prediction.block_means import standard_error
from closeranks.collectives.coded.prediction.candidates import (
    DEFAULT_MICRO,
    SchemeCandidate,
    candidates,
    per_round,
)
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.work_sharing import MOST_MICRO
from closeranks.collectives.coded.stragglers.delay_factors import StragglerModel, as_factors
from closeranks.collectives.coded.stragglers.number_argument import check_work, number
from closeranks.comms import argument
from closeranks.errors import UsageError

#: Another scheme than `Uncoded` must save more than this share of its time,
LEAST_GAIN: Final = 0.03
#: and more than so many standard errors.
LEAST_ERRORS: Final = 2.0
#: Of schemes within this share of the best, the one that needs the least data wins.
_ALIKE: Final = 0.01


@dataclass(frozen=True)
class CandidateTable:
    """Schemes that were compared; printable.

    Attributes
    ----------
    rows : list of dict
        A candidate each, fastest first: ``scheme`` (as written in a program),
        ``seconds`` (a round), ``error`` (standard error of the seconds saved),
        ``gain`` (share of the time of `Uncoded` that is saved), ``speedup``,
        ``memory`` (shares of the data that a worker needs), ``exact``, ``delay``
        (rounds), ``chosen``.
    reason : str
        Why the chosen one was chosen, in a sentence.
    """

    rows: list[dict[str, Any]]
    reason: str

    def __str__(self) -> str:
        width = max(len(row["scheme"]) for row in self.rows)
        lines = [f"  {'scheme':<{width}} {'seconds':>10} {'gain':>7} {'data':>5}"]
        for row in self.rows:
            mark = "*" if row["chosen"] else " "
            lines.append(
                f"{mark} {row['scheme']:<{width}} {row['seconds']:>10.4g}"
                f" {row['gain']:>6.1%} {row['memory']:>4.3g}x"
            )
        return "\n".join([*lines, self.reason])


def tune(
    delays: Any,
    *,
    fixed_s: float,
    compute_s: float,
    exact: bool = True,
    comm_s: float = 0,
    memory: float | None = None,
    delay: int = 0,
) -> Scheme:
    """Choose the scheme whose rounds would have taken least time.

    Local and pure: the same on all ranks that give the same.  Candidates are
    simulated with ``abandon="part"``.  `Uncoded` is chosen unless another scheme
    saves more than 3 % of its time, and more than 2 standard errors; of schemes
    within 1 % of the best, the one that needs the least data.  `UnequalShares`
    is a candidate where a rank is slow for good: at least 1.2 times slower than
    others in most rounds of both halves.

    Parameters
    ----------
    delays : array_like, shape (rounds, n), or Trace
        Round, worker -> how slow it was.
    fixed_s, compute_s : float
        Seconds of a round without any work, and of a whole batch more, at
        factor 1.
    exact : bool, optional
        Whether sums must be exact; else `Backup` is a candidate.
    comm_s : float, optional
        Seconds of a round for messages, whatever the scheme.
    memory : float, optional
        How much of the data a worker may have, at most, in shares of 1/n; no
        limit if not given.
    delay : int, optional
        Rounds that a sum may come late.  With 0 all candidates give the sum at
        once; from 1 on, `MSGC` and `SRSGC` are candidates.

    Returns
    -------
    Scheme
        The best, before its first round.  Its ``why`` is a `CandidateTable`.

    Raises
    ------
    UsageError
        If an argument is not as said.

    Examples
    --------
    >>> import numpy as np
    >>> from closeranks.collectives.coded import tune
    >>> slow = np.ones((100, 4))
    >>> type(tune(slow, fixed_s=0, compute_s=1)).__name__
    'Uncoded'
    >>> slow[:, 2] = 2.0
    >>> type(tune(slow, fixed_s=0, compute_s=1)).__name__
    'UnequalShares'
    """
    factors, micro = _given(delays)
    fixed_s = number("tune", "fixed_s", fixed_s)
    compute_s = number("tune", "compute_s", compute_s)
    comm_s = number("tune", "comm_s", comm_s)
    if memory is not None:
        memory = number("tune", "memory", memory, least=1)
    delay = argument.whole("tune", "delay", delay)
    check_work("tune", fixed_s, compute_s)
    found = candidates(factors, micro=micro, exact=bool(exact), memory=memory, delay=delay)
    found = [one for one in found if one.scheme.delay < len(factors)]
    times = [per_round(one, factors, fixed_s, compute_s) + comm_s for one in found]
    chosen, reason = choose(found, times)
    scheme = found[chosen].scheme
    vars(scheme)["why"] = _table(found, times, chosen, reason)
    return scheme


def choose(found: list[SchemeCandidate], times: list[NDArray[np.float64]]) -> tuple[int, str]:
    """Choose among candidates.

    Local and pure.

    Parameters
    ----------
    found : list of SchemeCandidate
        `Uncoded` first.
    times : list of ndarray
        SchemeCandidate -> seconds of each round.

    Returns
    -------
    chosen : int
        Which one.
    reason : str
        Why, in a sentence.
    """
    means = [float(time.mean()) for time in times]
    best = min(means)
    alike = [i for i, mean in enumerate(means) if mean <= best * (1 + _ALIKE)]
    chosen = min(alike, key=lambda i: (found[i].memory, means[i]))
    if chosen == 0:
        return 0, f"no scheme saves more than {_ALIKE:.0%} of a round"
    gain, error = means[0] - means[chosen], standard_error(times[0] - times[chosen])
    said = f"{found[chosen].name} saves {gain / means[0]:.1%} of a round"
    if gain <= LEAST_GAIN * means[0]:
        return 0, f"{said}: not more than {LEAST_GAIN:.0%}"
    if gain <= LEAST_ERRORS * error:
        return 0, f"{said}: not more than {LEAST_ERRORS:g} standard errors"
    return chosen, said


def _table(
    found: list[SchemeCandidate], times: list[NDArray[np.float64]], chosen: int, reason: str
) -> CandidateTable:
    """Describe candidates."""
    uncoded = float(times[0].mean())
    rows = [
        {
            "scheme": one.name,
            "seconds": float(time.mean()),
            "error": standard_error(times[0] - time),
            "gain": 1 - float(time.mean()) / uncoded,
            "speedup": uncoded / float(time.mean()),
            "memory": float(one.memory),
            "exact": one.scheme.exact,
            "delay": one.scheme.delay,
            "chosen": i == chosen,
        }
        for i, (one, time) in enumerate(zip(found, times, strict=True))
    ]
    return CandidateTable(sorted(rows, key=lambda row: float(row["seconds"])), reason)


def _given(delays: Any) -> tuple[NDArray[np.float64], int]:
    """Read the factors, and how many micro-batches a share has."""
    if not isinstance(delays, StragglerModel):
        return as_factors("tune", delays), DEFAULT_MICRO
    rounds, n = getattr(delays, "rounds", None), getattr(delays, "n", None)
    if rounds is None or n is None:
        problem = f"delays is a {type(delays).__name__}, which has no end"
        raise UsageError("tune", problem, "give its factors(rounds, n), or a Trace")
    micro = int(getattr(delays, "micro", 0)) or DEFAULT_MICRO
    return delays.factors(rounds, n), min(micro, MOST_MICRO)
