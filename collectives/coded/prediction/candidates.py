"""Schemes that might be best, and what they would take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.prediction.simulation import simulate
from closeranks.collectives.coded.schemes.backup import Backup
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.multiplexed import MSGC
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.selective_repetition import SRSGC
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares
from closeranks.collectives.coded.stragglers.slow_ranks import slow_ranks

#: Micro-batches of a share, where nobody says how many there are.
DEFAULT_MICRO: Final = 8
#: Workers of a group, in codes and where they help each other; and all workers, if few.
_CODE_GROUPS: Final = (2, 3, 4, 6, 8)
_HELPING_GROUPS: Final = (2, 4, 8, 16)
_FEW: Final = 32
#: Backup workers, as shares of all.
_BACKUPS: Final = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)


class SchemeCandidate(NamedTuple):
    """A scheme that might be best.

    Attributes
    ----------
    name : str
        As it is written in a program.
    scheme : Scheme
        The scheme, before its first round.
    memory : float
        Shares of the data that a worker needs: 1 if it has only its own.
    """

    name: str
    scheme: Scheme
    memory: float


def candidates(
    factors: NDArray[np.float64], *, micro: int, exact: bool, memory: float | None, delay: int
) -> list[SchemeCandidate]:  # fmt: skip
    """Give schemes to compare, `Uncoded` first.

    Local and pure.

    Parameters
    ----------
    factors : ndarray, shape (rounds, n)
        How slow workers were: `UnequalShares` is there if one is slow for good.
    micro : int
        Micro-batches of a share.
    exact : bool
        Whether sums must be exact; else `Backup` is there.
    memory : float or None
        Shares of the data that a worker may have, at most.
    delay : int
        Rounds that a sum may come late: from 1 on, `SRSGC` and `MSGC` are there.

    Returns
    -------
    list of SchemeCandidate
        Those that fit.
    """
    n = factors.shape[1]
    found = [*_all(factors, micro), *_sequential(factors, delay)]
    if not exact:
        most = {max(1, round(n * share)) for share in _BACKUPS}
        found += [
            SchemeCandidate(f"Backup({n}, {s})", Backup(n, s), 1) for s in sorted(most) if s < n
        ]
    return [one for one in found if memory is None or one.memory <= max(1, memory) + 1e-9]


def _all(factors: NDArray[np.float64], micro: int) -> Iterator[SchemeCandidate]:
    """Give the exact schemes without delay."""
    n = factors.shape[1]
    yield SchemeCandidate(f"Uncoded({n})", Uncoded(n), 1)
    ranks = slow_ranks(factors)
    if ranks.chronic:
        # Speeds of the others are taken as equal: what differs by chance would not last.
        speeds = np.ones(n)
        speeds[list(ranks.chronic)] = 1 / ranks.usual[list(ranks.chronic)]
        shares = UnequalShares(n, speeds.tolist())
        yield SchemeCandidate(f"UnequalShares({n}, speeds)", shares, shares.load * n)
    for size in _sizes(_CODE_GROUPS, n):
        code = GradientCoding(n, size - 1)
        yield SchemeCandidate(f"Repetition({n}, {size - 1})", code, code.load * n)
    for size in _sizes(_HELPING_GROUPS, n):
        helping = PartialRepetition(n, size - 1, micro)
        most = max(len(group) for group in helping.groups)
        pieces = "" if micro == DEFAULT_MICRO else f", {micro}"
        yield SchemeCandidate(f"PartialRepetition({n}, {size - 1}{pieces})", helping, most)


def _sizes(sizes: tuple[int, ...], n: int) -> list[int]:
    """Give sizes of groups."""
    return sorted({size for size in sizes if size <= n} | ({n} if 2 <= n <= _FEW else set()))


def _sequential(factors: NDArray[np.float64], delay: int) -> Iterator[SchemeCandidate]:
    """Give schemes whose sums come late, for as many late workers as there were."""
    n, late = factors.shape[1], slow_ranks(factors).late
    for B in range(1, delay + 1):
        for W in range(B + 1, delay + 3 - B):
            for lam in _lams(late, B, W):
                scheme = MSGC(n, B, W, lam)
                yield SchemeCandidate(f"MSGC({n}, {B}, {W}, {lam})", scheme, scheme.load * n)
        for lam in _lams(late, B, B + 1):
            repeat = SRSGC(n, B, B + 1, lam)
            yield SchemeCandidate(f"SRSGC({n}, {B}, {B + 1}, {lam})", repeat, repeat.load * n)


def _lams(late: NDArray[np.bool_], B: int, W: int) -> list[int]:
    """Give numbers of late workers: as in most windows, and in nearly all."""
    windows = [late[r : r + W].any(axis=0).sum() for r in range(max(1, len(late) - W + 1))]
    found = {int(np.quantile(windows, share, method="higher")) for share in (0.5, 0.95)}
    return sorted(lam for lam in found if B < W and 1 <= lam < late.shape[1])


def per_round(
    candidate: SchemeCandidate, factors: NDArray[np.float64], fixed_s: float, compute_s: float
) -> NDArray[np.float64]:
    """Simulate a candidate.  Local.

    Parameters
    ----------
    candidate : SchemeCandidate
        The scheme.
    factors : ndarray, shape (rounds, n)
        How slow workers are.
    fixed_s, compute_s : float
        As of `simulate`.

    Returns
    -------
    ndarray, shape (rounds,)
        Seconds of each round.
    """
    found = simulate(
        candidate.scheme, factors, rounds=len(factors), fixed_s=fixed_s, compute_s=compute_s
    )
    return found.per_round
