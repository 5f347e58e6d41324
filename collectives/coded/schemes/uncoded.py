"""No code: every worker has its own part, and the sum waits for all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.comms import argument


class Uncoded(OneTask):
    """One part a worker; a round ends when all have finished.

    Parameters
    ----------
    n : int
        Workers.

    Raises
    ------
    UsageError
        If n < 1.
    """

    def __init__(self, n: int) -> None:
        n = argument.whole("Uncoded", "n", n, least=1)
        self._use([((worker,), (1.0,)) for worker in range(n)], n)

    def for_workers(self, n: int) -> Uncoded:
        """Give the scheme for another number of workers."""
        return Uncoded(n)

    def conforms(self, round: int, stragglers: Collection[int]) -> bool:  # noqa: ARG002
        """Tell whether a round may end without some workers: only without none."""
        return not stragglers

    def _weights(self, finished: frozenset[int]) -> Sequence[float] | None:
        return [1.0] * self.n if self._enough(finished) else None

    def _enough(self, finished: frozenset[int]) -> bool:
        return len(finished) == self.n
