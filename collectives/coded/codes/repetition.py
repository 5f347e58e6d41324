"""Repetition codes: some workers have the same parts, and one is enough."""

from __future__ import annotations

from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.comms import argument
from closeranks.errors import UsageError


class Repetition(GroupCode):
    """Grouped repetition, for any number of workers.

    There are ``g = n // (s + 1)`` groups, and each computes one part of the batch.
    Worker ``i`` is in group ``i * g // n``; a group has ``s + 1`` workers or more.
    The sum takes the lowest finished worker of each group, with weight 1.

    Source: the fractional repetition code of Tandon, Lei, Dimakis and
    Karampatziakis, "Gradient coding", ICML 2017.  Departure: groups
    may have unequal sizes, so ``s + 1`` need not divide ``n``, and there are as
    many parts as groups.  Some sets of many more than ``s`` late workers decode.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        Any ``s`` workers may be late; 0 to ``n - 1``.

    Raises
    ------
    UsageError
        If a number is out of bounds.
    """

    def __init__(self, n: int, s: int) -> None:
        n = argument.whole("Repetition", "n", n, least=1)
        self.s = argument.whole("Repetition", "s", s, below=n)
        g = n // (self.s + 1)
        super().__init__([i * g // n for i in range(n)], [[group] for group in range(g)])

    def for_workers(self, n: int) -> Repetition:
        """Give the code for another number of workers, in groups of n at most."""
        return Repetition(n, min(self.s, n - 1))


class FractionalRepetition(GroupCode):
    """Fractional repetition: ``s + 1`` blocks of workers, each with the whole batch.

    The batch has ``n`` parts.  Worker ``p`` of a block of ``n / (s + 1)`` workers
    computes parts ``p (s + 1)`` to ``p (s + 1) + s``.  The sum takes the lowest
    finished worker of each ``p``, with weight 1.

    Source: Tandon, Lei, Dimakis and Karampatziakis, "Gradient coding", ICML 2017.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        Any ``s`` workers may be late; ``s + 1`` divides ``n``.

    Raises
    ------
    UsageError
        If a number is out of bounds, or ``s + 1`` does not divide ``n``.
    """

    def __init__(self, n: int, s: int) -> None:
        n = argument.whole("FractionalRepetition", "n", n, least=1)
        self.s = argument.whole("FractionalRepetition", "s", s, below=n)
        copies = self.s + 1
        if n % copies:
            problem = f"s + 1 = {copies} does not divide n = {n}"
            remedy = f"give such an s, or Repetition({n}, {self.s})"
            raise UsageError("FractionalRepetition", problem, remedy)
        size = n // copies
        parts = [range(p * copies, (p + 1) * copies) for p in range(size)]
        super().__init__([i % size for i in range(n)], parts)

    def for_workers(self, n: int) -> FractionalRepetition:
        """Give the code for another number of workers, if s + 1 divides it."""
        return FractionalRepetition(n, self.s)
