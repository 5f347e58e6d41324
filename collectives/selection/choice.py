"""What a chooser answers: an algorithm, and the reasons."""

from __future__ import annotations

import math
from typing import NamedTuple

from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.collectives.selection.trial import Trial

#: From so many seconds on, a call that no rank waits for is a plan: the library's own makes no
#: progress while the program computes.  A shorter one is not worth a thread.
UNATTENDED_S = 1e-3


class Choice(NamedTuple):
    """An answer, with its reasons.

    Attributes
    ----------
    algorithm : str
        The algorithm for the next call.
    predicted_s : float
        Its predicted (or agreed measured) time, seconds.
    predictions : dict of str to float
        Predicted seconds of every candidate; empty where none was priced.
    objections : dict of str to str
        Why the others are no candidates.
    trial : Trial or None
        Measured times, where calls are tried.
    source : str
        Why it is this one: "forced", "table", "remembered", "tried" or
        "predicted".
    """

    algorithm: str
    predicted_s: float
    predictions: dict[str, float]
    objections: dict[str, str]
    trial: Trial | None
    source: str = "predicted"

    @property
    def is_tried(self) -> bool:
        """Whether calls are being tried now."""
        return self.trial is not None and self.trial.winner is None

    def seconds(self, name: str) -> float:
        """Give the agreed time of an algorithm, else the predicted one, or infinity."""
        agreed_s = self.trial.agreed_s if self.trial is not None else {}
        return agreed_s.get(name, self.predictions.get(name, math.inf))

    def unattended(self, *, persistent: bool = False) -> str:
        """Name the algorithm of a call without a waiting rank, see `UNATTENDED_S`.

        Parameters
        ----------
        persistent : bool
            Whether a start may begin a kernel, which takes no thread.

        Returns
        -------
        str
            The fastest plan if the library's would stand still for long, else the
            library's if it can.
        """
        trial = self.trial
        times = (trial and trial.agreed_s) or self.predictions
        name = self.algorithm
        if trial is not None:
            name = trial.winner or min(times, key=lambda one: times[one])
        plans = {one: seconds for one, seconds in times.items() if one != NATIVE}
        if not plans or NATIVE not in times or (persistent and name == SHARED):
            return name
        best = min(plans, key=lambda one: plans[one])
        is_long = min(plans[best], times[NATIVE]) >= UNATTENDED_S
        return best if is_long else NATIVE
