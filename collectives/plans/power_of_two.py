"""Make a power of two out of any number of members.

The first ``2 rem`` members pair up: the even one leaves for the time of the
exchange and its odd neighbour stands for both.  Who stands for whom keeps the
order of the members, so runs of places are runs of members.
"""

from __future__ import annotations

from typing import NamedTuple


class Fold(NamedTuple):
    """A power of two of places for ``size`` members.

    Attributes
    ----------
    size : int
        Members.
    places : int
        The largest power of two that is not larger.
    rest : int
        ``size - places``: members that leave.
    """

    size: int
    places: int
    rest: int

    def place(self, member: int) -> int:
        """Return the place of a member, -1 if it leaves."""
        if member >= 2 * self.rest:
            return member - self.rest
        return member // 2 if member % 2 else -1

    def member(self, place: int) -> int:
        """Return who sits at a place."""
        return 2 * place + 1 if place < self.rest else place + self.rest

    def edge(self, place: int) -> int:
        """Return the first member for whom ``place`` stands; also for ``places``."""
        return place + min(place, self.rest)


def fold(size: int) -> Fold:
    """Fold ``size`` members, at least 1, to a power of two."""
    places = 1 << (size.bit_length() - 1)
    return Fold(size, places, size - places)
