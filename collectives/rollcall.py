"""Who has arrived: asked by a rank whose patience is over.  No input, no output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: How long a rank that is asked may take to answer, seconds.
GRACE_S: Final = 0.5


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
        self._is_new = True
        self._absent: set[int] = set()

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that have not answered, ascending."""
        return tuple(sorted(self._silent))

    def to_ask(self) -> tuple[int, ...]:
        """Give whom to ask: all others at first, then nobody."""
        asked, self._is_new = self.silent if self._is_new else (), False
        return asked

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


class Roll:
    """One rank's roll calls in a world, one after the other.

    A collective may end well although a call was held for it, and nobody says
    so here.  All that are in flight are looked at in turn: one that is not,
    between two looks at another, is over, and so is its call.

    Parameters
    ----------
    rank, size : int
        Who asks, of how many.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._call: RollCall | None = None
        self._passed: set[int] = set()

    def call(self, turn: int, now_s: float) -> RollCall | None:
        """Give the roll call of a collective that has lasted too long.

        Parameters
        ----------
        turn : int
            Number of the collective, which is in flight.
        now_s : float
            By the caller's clock.

        Returns
        -------
        RollCall or None
            Begun here if need be; None while another one's may be under way.
        """
        call = self._call
        if call is not None and call.turn != turn and turn not in self._passed:
            self._passed.add(turn)
            return None
        if call is None or call.turn != turn:
            call = self._call = RollCall(self._rank, self._size, turn, now_s + GRACE_S)
        self._passed.clear()
        return call

    def hear(self, rank: int, turn: int, entered: int) -> None:
        """Take an answer, see `RollCall.hear`; one to an earlier call is old."""
        if self._call is not None and self._call.turn == turn:
            self._call.hear(rank, entered)


def _ascending(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
