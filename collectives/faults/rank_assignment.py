"""The seats of the processes after a recovery: pure, the same on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ProcessReport(NamedTuple):
    """A process's report of itself when the world is made anew.

    Attributes
    ----------
    seat : int or None
        Its seat; None for a spare.
    cause : str or None
        The error by which it leaves, if it does.
    is_new : bool
        Whether it was started for a vacant seat, and no process watches it yet.
    tells : bool
        Whether it only exchanges the errors by which members leave.
    """

    seat: int | None
    cause: str | None = None
    is_new: bool = False
    tells: bool = False


class RankAssignment(NamedTuple):
    """The members of the next world.

    Attributes
    ----------
    seats : tuple of int
        Their seats, ascending: rank -> seat.
    seat_of : dict of int to int
        Rank among all living processes -> seat; spares that go on waiting have
        none.
    joined : tuple of int
        Seats of newcomers.
    first_survivor : int
        Rank, among the members, of the first one that was a member before.
    """

    seats: tuple[int, ...]
    seat_of: dict[int, int]
    joined: tuple[int, ...]
    first_survivor: int


def is_over(reports: Sequence[ProcessReport]) -> bool:
    """Tell whether the job ends: members leave, or none is left.

    Pure.

    Parameters
    ----------
    reports : sequence of ProcessReport
        By rank; spares alone where all members have ended.

    Returns
    -------
    bool
        Whether spares are to leave, too.
    """
    return any(said.cause for said in reports) or all(said.seat is None for said in reports)


def assign_seats(reports: Sequence[ProcessReport], seats: int) -> RankAssignment:
    """Give vacant seats to spares, in the order of their ranks.

    Pure.

    Parameters
    ----------
    reports : sequence of ProcessReport
        By rank; at least one of a member.
    seats : int
        Number of seats in the first world; 0 if seats stay vacant.

    Returns
    -------
    RankAssignment
        With all members, and as many spares as there are vacant seats.
    """
    seat_of = {rank: said.seat for rank, said in enumerate(reports) if said.seat is not None}
    first_survivor = seat_of[min(seat_of)]
    vacant = sorted(set(range(seats)) - set(seat_of.values()))
    spares = [rank for rank, said in enumerate(reports) if said.seat is None]
    newcomers = dict(zip(spares, vacant, strict=False))
    seat_of |= newcomers
    taken = tuple(sorted(seat_of.values()))
    return RankAssignment(
        taken, seat_of, tuple(sorted(newcomers.values())), taken.index(first_survivor)
    )
