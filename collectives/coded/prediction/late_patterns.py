"""Which rounds wait for all, by the authors' rule: late workers as bits.

`Sequential.conforms` tells the same from the deliveries of a scheme.  Here
they are not told one by one, for the rule needs only who was late: a thousand
rounds take a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def late_bits(late: NDArray[np.bool_]) -> list[int]:
    """Pack a pattern.

    Local and pure.

    Parameters
    ----------
    late : ndarray of bool, shape (rounds, n)
        Round, worker -> whether it is late.

    Returns
    -------
    list of int
        Round -> a number with bit ``i`` for worker i.
    """
    packed = np.packbits(late, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def multiplexed_waits(late: Sequence[int], B: int, W: int, lam: int) -> NDArray[np.bool_]:
    """Tell in which rounds M-SGC waits for all.

    Local and pure.

    Parameters
    ----------
    late : sequence of int
        Round -> bits of the workers that are late.
    B, W, lam : int
        Parameters of the scheme.

    Returns
    -------
    ndarray of bool, shape (rounds,)
        Round -> whether the late workers and those of rounds before, but for
        rounds that waited, are no pattern of the model.
    """
    window, waited = _Window(B, W, lam), []
    for now in late:
        fits = window.fits(now)
        waited.append(not fits)
        window.add(now if fits else 0)
    return np.array(waited, bool)


def repeating_waits(
    late: Sequence[int], B: int, W: int, lam: int, s: int, groups: Sequence[int] | None = None
) -> NDArray[np.bool_]:
    """Tell in which rounds SR-SGC waits for all.

    Local and pure.

    Parameters
    ----------
    late : sequence of int
        Round -> bits of the workers that are late.
    B, W, lam, s : int
        Parameters of the scheme.
    groups : sequence of int, optional
        Group -> bits of its workers, for an inner code that needs one of each.

    Returns
    -------
    ndarray of bool, shape (rounds,)
        As of `multiplexed_waits`; also without rounds that add no backlog.
    """
    window, waited = _Window(B, W, lam), []
    absent: list[int] = []  # round -> who did not deliver its own job
    for round, now in enumerate(late):
        repeaters = _repeaters(absent[round - B], s, groups) if round >= B else 0
        fits = window.fits(now)
        waited.append(not fits)
        now = now if fits else 0
        absent.append(now | repeaters)
        exempt = not repeaters and now.bit_count() <= s
        window.add(0 if exempt else now)
    return np.array(waited, bool)


class _Window:
    """The late workers of the last ``W - 1`` rounds, oldest first."""

    def __init__(self, B: int, W: int, lam: int) -> None:
        self._far, self._lam = max(0, W - B), lam
        self._before = [0] * (W - 1)

    def fits(self, now: int) -> bool:
        """Tell whether these workers may be late next."""
        distinct = now
        for then in self._before:
            distinct |= then
        # Those of B rounds ago or more may not be late again within the window.
        apart = all(not now & then for then in self._before[: self._far])
        return apart and distinct.bit_count() <= self._lam

    def add(self, now: int) -> None:
        """End a round."""
        if self._before:
            self._before = [*self._before[1:], now]


def _repeaters(absent: int, s: int, groups: Sequence[int] | None) -> int:
    """Give the bits of those that compute a job again, which others did not deliver."""
    more = absent.bit_count() - s
    if more <= 0:
        return 0
    found = 0
    if groups is not None:
        for group in groups:
            if not group & ~absent:
                found |= group & -group
        return found
    for _ in range(more):
        found |= absent & -absent
        absent &= absent - 1
    return found
