"""A scheme chosen from the times of the ranks themselves, and chosen again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from closeranks.collectives.coded.prediction.tuning import tune
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.uncoded import Uncoded

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

#: Rounds before the first choice, and between two others.
FIRST, BETWEEN = 32, 64
#: Rounds that a choice looks back at.
_KEPT: Final = 256


class AutoScheme:
    """The choice of a scheme for one `CodedAllreduce`.

    After 32 rounds without a code, and then after every 64, the ranks gather
    how slow each was in each round.  All ranks compute the same choice from
    it.  Batches that are too small for it get what fits.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._n = comm, comm.Get_size()
        self._seconds: deque[float] = deque(maxlen=BETWEEN)
        self._factors: np.ndarray[Any, np.dtype[np.float64]] = np.empty((0, self._n))
        self._last_s = 0.0
        self._chosen: Scheme = Uncoded(self._n)
        self._fitted: tuple[int, Scheme] = -1, self._chosen

    def note(self, seconds: float, computed: int) -> None:
        """Note a round in which this rank has computed micro-batches.  Local.

        Parameters
        ----------
        seconds : float
            How long.
        computed : int
            How many; 0 if the round was over before this rank began.
        """
        if computed:
            self._last_s = seconds / computed
        self._seconds.append(self._last_s)

    def is_due(self, rounds: int) -> bool:
        """Tell whether the ranks choose after so many rounds.  Local."""
        return rounds == FIRST or (rounds > FIRST and (rounds - FIRST) % BETWEEN == 0)

    def choose(self, parts: int) -> None:
        """Choose a scheme, the same on all ranks.

        Collective.

        Parameters
        ----------
        parts : int
            Micro-batches of a round.
        """
        told = self._comm.allgather(list(self._seconds))
        self._seconds.clear()
        seconds = np.array(told).T
        usual = np.median(seconds[seconds > 0]) if np.any(seconds > 0) else 1.0
        factors = np.where(seconds > 0, seconds, usual) / usual
        self._factors = np.concatenate([self._factors, factors])[-_KEPT:]
        self._chosen = tune(self._factors, fixed_s=0, compute_s=usual * parts)
        self._fitted = -1, self._chosen

    def fitting(self, parts: int) -> Scheme:
        """Give the scheme for a batch.

        Local; the same on all ranks.

        Parameters
        ----------
        parts : int
            Its micro-batches.

        Returns
        -------
        Scheme
            What was chosen last, with at most so many parts; `Uncoded` where that
            cannot be, before the first choice, and for batches that nothing fits.
            The same object for batches of one size that follow each other.
        """
        if parts != self._fitted[0]:
            self._fitted = parts, self._fit(parts)
        return self._fitted[1]

    def _fit(self, parts: int) -> Scheme:
        chosen = self._chosen
        if isinstance(chosen, PartialRepetition) and chosen.parts > parts:
            micro = parts // self._n
            chosen = PartialRepetition(self._n, chosen.s, micro) if micro else Uncoded(self._n)
        return chosen if chosen.parts <= parts else Uncoded(self._n)
