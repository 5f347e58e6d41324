"""Who has arrived: asked by a rank whose patience is over.  No input, no output."""

from __future__ import annotations

from collections.abc import Iterable


class RollCall:
    """What one rank knows of who has arrived at a collective.

    It asks all others how many collectives they have entered.  Whoever has not
    entered this one is absent, and so is whoever does not answer in time: it is
    stopped, gone, or cannot be reached.

    Parameters
    ----------
    rank, size : int
        Who asks, of how many.
    turn : int
        Number of the collective: how many this rank had entered before it.
    until_s : float
        When it stops waiting for answers, by the caller's clock.
    """

    def __init__(self, rank: int, size: int, turn: int, until_s: float) -> None:
        self.turn, self._until_s = turn, until_s
        self._silent = set(range(size)) - {rank}
        self._absent: set[int] = set()

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that have not answered, ascending."""
        return tuple(sorted(self._silent))

    def hear(self, rank: int, entered: int) -> None:
        """Take an answer.

        Parameters
        ----------
        rank : int
            Whose.
        entered : int
            How many collectives it has entered.  The last answer counts: it may have
            arrived since.
        """
        self._silent.discard(rank)
        if entered > self.turn:
            self._absent.discard(rank)
        else:
            self._absent.add(rank)

    def absent(self, now_s: float) -> tuple[int, ...] | None:
        """Name who has not arrived.

        Parameters
        ----------
        now_s : float
            By the caller's clock.

        Returns
        -------
        tuple of int or None
            Ascending, empty if all are there and only slow; None as long as answers
            may come.
        """
        if self._silent and now_s < self._until_s:
            return None
        return _ascending(self._absent | self._silent)


def _ascending(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
