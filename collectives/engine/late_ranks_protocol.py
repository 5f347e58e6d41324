"""Arrival queries, pure: which ranks are absent, and which rank asks."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log2
from types import MappingProxyType
from typing import Final

#: How long a rank that is asked may take to answer, seconds.
GRACE_S: Final = 0.5
#: When all are to know, after the patience of one is over.  If the asking rank stops, the next one
#: waits for half of what is left, so that others can still ask, and no less than the least.
_END_S: Final = 1.0
_LEAST_S: Final = 50e-3
#: How long what was found may be on its way.
_WAY_S: Final = 50e-3
#: How long rank 1 leaves it to rank 0.  Rank 3 waits twice as long, rank 1023 ten times.
_STEP_S: Final = 20e-3
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class ArrivalQuery:
    """A query of one rank: the ranks that have not arrived at a collective.

    It asks all others how many collectives they have entered, and which they are
    in.  A rank is absent if it has not entered this collective, or if it does not
    answer in time: it is stopped, dead, or cannot be reached.  A silent rank is
    not absent if shared memory shows that it has left this collective and
    computes.

    Some collectives end earlier on one rank than on another.  So the asking rank
    may be in a later collective than other ranks that wait, too.  These are not to
    blame: the first collective counts that any rank is in and that an absent rank
    holds up.

    Parameters
    ----------
    rank, size : int
        The rank that asks, of how many.
    turn : int
        Number of the collective: how many this rank had entered before it.
    until_s : float
        When it stops waiting for answers, by the caller's clock.

    Attributes
    ----------
    turn, until_s
        As given.
    """

    def __init__(self, rank: int, size: int, turn: int, until_s: float) -> None:
        self.turn, self.until_s = turn, until_s
        self._silent = set(range(size)) - {rank}
        self._is_new = True
        self._heard: dict[int, tuple[int, int]] = {}

    @property
    def silent(self) -> tuple[int, ...]:
        """Ranks that have not answered, ascending."""
        return tuple(sorted(self._silent))

    def to_ask(self) -> tuple[int, ...]:
        """Give the ranks to ask: all others at first, then none."""
        asked, self._is_new = self.silent if self._is_new else (), False
        return asked

    def hear(self, rank: int, entered: int, within: int) -> None:
        """Take an answer; the last one counts, it may have arrived since.

        Parameters
        ----------
        rank : int
            The rank that answers; also this rank.
        entered : int
            How many collectives it has entered.
        within : int
            The first of them that it is in; ``entered`` if it is in none.
        """
        self._silent.discard(rank)
        self._heard[rank] = entered, within

    def absent(self, now_s: float, seen: Mapping[int, int] = _NOTHING) -> tuple[int, ...] | None:
        """Name the ranks that have not arrived.

        Parameters
        ----------
        now_s : float
            By the caller's clock.
        seen : mapping of int to int, optional
            ``within`` of some ranks, see `hear`, known without their answers.

        Returns
        -------
        tuple of int or None
            Ascending, empty if all are there and only slow; None as long as answers
            may come.
        """
        if self._silent and now_s < self.until_s:
            return None
        held = {within for entered, within in self._heard.values() if within < entered}
        turns = sorted({turn for turn in held if turn < self.turn} | {self.turn})
        return next(filter(None, (self._missing(turn, seen) for turn in turns)), ())

    def _missing(self, turn: int, seen: Mapping[int, int]) -> tuple[int, ...]:
        """Name ranks that have not entered a collective, or are in it and silent."""
        behind = {rank for rank, (entered, _) in self._heard.items() if entered <= turn}
        silent = {rank for rank in self._silent if seen.get(rank, turn) <= turn}
        return tuple(sorted(behind | silent))


class ArrivalQueries:
    """One rank's arrival queries in a world, one after the other.

    The patience of all waiting ranks ends at about the same time.  If all asked
    all, most would not be answered in time.  So the lower ranks ask before the
    higher ones, and a rank that has been asked leaves the query to the asking
    rank, as long as that may take.

    A collective may end well although a query was made for it, and no call says so
    here.  All collectives in flight are looked at in turn.  One that is not looked
    at between two looks at another is over, and so is its query.

    Parameters
    ----------
    rank, size : int
        The rank that asks, of how many.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._turn, self._since_s = -1, 0.0
        self._query: ArrivalQuery | None = None
        self._passed: set[int] = set()
        self._left: dict[int, float] = {}

    def query(self, turn: int, now_s: float) -> ArrivalQuery | None:
        """Give the query for a collective that has lasted too long.

        Parameters
        ----------
        turn : int
            Number of the collective, which is in flight.
        now_s : float
            By the caller's clock.

        Returns
        -------
        ArrivalQuery or None
            Begun here if it is time; None while the query of another collective may
            be under way, or another rank may ask.
        """
        if turn != self._turn and not self._turns_to(turn, now_s):
            return None
        self._passed.clear()
        if self._query is None and now_s >= self._asks_at_s():
            until_s = now_s + self._grace_s(now_s)
            self._query = ArrivalQuery(self._rank, self._size, turn, until_s)
        return self._query

    def _turns_to(self, turn: int, now_s: float) -> bool:
        """Take up another collective, unless the last one may be in flight."""
        if self._turn >= 0 and turn not in self._passed:
            self._passed.add(turn)
            return False
        self._turn, self._since_s, self._query = turn, now_s, None
        return True

    def _asks_at_s(self) -> float:
        mine_s = max(self._since_s, self._left_until_s) + _STEP_S * log2(1 + self._rank)
        return min(mine_s, self._since_s + _END_S - 2 * _LEAST_S)

    def _grace_s(self, now_s: float) -> float:
        if self._left_until_s <= self._since_s:
            return GRACE_S
        return max(min(GRACE_S, (self._since_s + _END_S - now_s) / 2), _LEAST_S)

    @property
    def _left_until_s(self) -> float:
        """How long other ranks may ask, with an answer for this rank too."""
        return max((s for turn, s in self._left.items() if turn <= self._turn), default=-inf)

    def asked(self, turn: int, grace_s: float, now_s: float) -> None:
        """Hear that another rank asks.

        A rank that waits for that collective, or for a later one, hears the result.

        Parameters
        ----------
        turn : int
            Number of the collective.
        grace_s : float
            How long it waits for answers.
        now_s : float
            By the caller's clock.
        """
        self._left = {turn: s for turn, s in self._left.items() if s > now_s - _END_S}
        self._left[turn] = max(now_s + grace_s + _WAY_S, self._left.get(turn, 0.0))

    def hear(self, rank: int, turn: int, entered: int, within: int) -> None:
        """Take an answer, see `ArrivalQuery.hear`; one to an earlier query is old."""
        if self._query is not None and self._query.turn == turn:
            self._query.hear(rank, entered, within)
