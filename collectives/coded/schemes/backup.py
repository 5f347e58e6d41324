"""Backup workers: the slowest are left out, and the sum of the others is scaled."""

from __future__ import annotations

from collections.abc import Sequence

from closeranks.collectives.coded.schemes.one_task import OneTask
from closeranks.comms import argument


class Backup(OneTask):
    """One part a worker; the sum of the first ``n - s``, or more, is scaled.

    Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous
    SGD", 2016.  Departure: whoever has finished when the round ends counts, so
    the sum of f workers is multiplied by ``n / f``.

    Its sum is an estimate: ``exact`` is False.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        How many of them may be left out in a round.

    Raises
    ------
    UsageError
        If n < 1, or s is outside of 0 to ``n - 1``.
    """

    exact = False

    def __init__(self, n: int, s: int) -> None:
        n = argument.whole("Backup", "n", n, least=1)
        self.s = argument.whole("Backup", "s", s, below=n)
        self._use([((worker,), (1.0,)) for worker in range(n)], n)

    def for_workers(self, n: int) -> Backup:
        """Give the scheme for another number of workers; one always counts."""
        return Backup(n, min(self.s, n - 1))

    def _weights(self, finished: frozenset[int]) -> Sequence[float] | None:
        return [self.n / len(finished)] * self.n if self._enough(finished) else None

    def _enough(self, finished: frozenset[int]) -> bool:
        return len(finished) >= self.n - self.s
