"""How often to call, in how many blocks, and whether in batches: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHORT_S = 20e-6
"""Below this a call is timed in batches: a barrier would cost as much."""
BATCH = 1000
BLOCKS = 11
"""Alternating blocks a side, and batches, at least."""
LARGE_BYTES = 8192
"""Above this fewer calls by default, as in OMB."""
STEADY_S = 1.0
"""Seconds a side that a comparison takes, if it may: ranks that share cores differ
by several hundredths from one tenth of a second to the next."""
LEAST_IN_BLOCK = 20


@dataclass(frozen=True)
class Schedule:
    """The timed part of one size.

    Parameters
    ----------
    blocks : int
        Blocks a side; the sides take turns.
    calls : int
        Calls in a block.
    batched : bool
        Whether a block is one sample, without barriers inside.
    """

    blocks: int
    calls: int
    batched: bool


@dataclass(frozen=True)
class Effort:
    """How much time a size may take.

    Parameters
    ----------
    iterations, warmup : int, optional
        Calls a side; None chooses as OMB does and keeps to `budget_s`.
    budget_s : float
        Seconds for the timed part of all sides together; the least number
        of samples is taken even if it takes longer.
    """

    iterations: int | None = None
    warmup: int | None = None
    budget_s: float = 3.0

    def schedule(
        self,
        estimates_s: Sequence[float],
        nbytes: int,
        *,
        batched: bool | None = None,
        least: int = 3,
    ) -> Schedule:
        """Plan the timed part.

        Parameters
        ----------
        estimates_s : sequence of float
            Seconds per call of each side.
        nbytes : int
            Size of the operation.
        batched : bool, optional
            Batches or single calls; None decides by the fastest side.
        least : int
            Samples to take whatever they cost, with a single side.

        Returns
        -------
        Schedule
            At least `BLOCKS` blocks if there are several sides or batches.
        """
        together = max(sum(estimates_s), 1e-9)
        if batched is None:
            batched = min(estimates_s) < SHORT_S
        affordable = int(self.budget_s / together)
        if batched:
            blocks = min(affordable // BATCH, 100)
            if self.iterations is not None:
                blocks = math.ceil(self.iterations / BATCH)
            return Schedule(max(blocks, BLOCKS), BATCH, True)
        sides = len(estimates_s)
        blocks = BLOCKS if sides > 1 else 1
        if self.iterations is not None:
            return Schedule(blocks, math.ceil(self.iterations / blocks), False)
        wanted = 1000 if nbytes <= LARGE_BYTES else 100
        if sides > 1:
            wanted = max(wanted, int(STEADY_S * sides / together))
        calls = min(wanted, max(affordable, least))
        blocks = max(blocks, calls // LEAST_IN_BLOCK // sides * sides if sides > 1 else 0)
        return Schedule(blocks, math.ceil(calls / blocks), False)

    def warmups(self, estimate_s: float, nbytes: int) -> int:
        """Count the calls before the timed part.

        Parameters
        ----------
        estimate_s : float
            Seconds per call.
        nbytes : int
            Size of the operation.

        Returns
        -------
        int
            100, or 10 above 8 KiB, cut to a tenth of the budget.
        """
        if self.warmup is not None:
            return self.warmup
        wanted = 100 if nbytes <= LARGE_BYTES else 10
        return min(wanted, int(0.1 * self.budget_s / max(estimate_s, 1e-9)))
