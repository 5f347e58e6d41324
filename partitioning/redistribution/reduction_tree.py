"""How terms that ranks hold become values at a rank that wants them.

Level by level, from the inside out.  In each group one of the ranks that hold
a term adds the sums of the groups inside it, and sends the sum to the rank
that does so for the group outside.  So the elements leave each group at most
once, however many terms it has.  The rank that wants the value adds in all
groups that it is in.

Terms of a group are added in their order, and so are the sums of groups: each
has the place of its first term.  Who adds, and who wants the value, makes no
difference to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from closeranks.partitioning.redistribution.distribution_tree import GroupedRanks, Machine, turn


class Addition(NamedTuple):
    """Sums of the groups inside a group that a rank adds.

    Attributes
    ----------
    level : int
        Level of the groups whose sums are added.
    senders : tuple of int
        From whom each sum comes, in order; may be the rank itself.
    are_sums : tuple of bool
        Whether it is a sum of several terms; else it is a term.
    """

    level: int
    senders: tuple[int, ...]
    are_sums: tuple[bool, ...]


class Role(NamedTuple):
    """What one rank does to reduce some elements.

    Attributes
    ----------
    additions : list of Addition
        From the inside out.
    receiver : int
        To whom it sends its term, or what it has added; -1 if to nobody.
    level : int
        Over the link of which level.
    place : int
        Which of the sums that the receiver adds it is.
    """

    additions: list[Addition]
    receiver: int = -1
    level: int = 0
    place: int = 0


def role(rank: int, reducer: int, holders: GroupedRanks, machine: Machine, number: int) -> Role:
    """Give what one rank does to reduce some elements.

    Parameters
    ----------
    rank : int
        The rank: one of the holders, or the reducer.
    reducer : int
        Where the value is wanted.
    holders : GroupedRanks
        Ranks that hold the terms, in their order.
    machine : Machine
        Its groups.
    number : int
        Of the elements: it spreads the work.

    Returns
    -------
    Role
        The same, whichever of the ranks asks.
    """
    found: list[Addition] = []
    sent: tuple[int, int, int] = -1, 0, 0
    adder, outer = reducer, -1  # who adds in the group outside, and that group
    for level, (row, inside) in enumerate(zip(machine.rows, holders.inside, strict=True)):
        mine = row[rank]
        groups = holders.groups[level].get(outer, [])
        if rank == adder:
            senders = tuple([
                rank if group == mine else _adder(inside[group], number) for group in groups
            ])  # fmt: skip
            if len(senders) > 1 or (senders and senders[0] != rank):
                found.append(Addition(level, senders, tuple([len(inside[g]) > 1 for g in groups])))
            if mine not in inside:
                break
        elif mine != row[adder]:
            theirs, adder = adder, _adder(inside[mine], number)
            if adder == rank:
                sent = theirs, level, groups.index(mine)
        outer = mine
    found.reverse()
    return Role(found, *sent)


def _adder(members: list[int], number: int) -> int:
    """Choose who adds in a group that the reducer is not in."""
    return members[turn(number, len(members))]


def useful_cuts(reducers: Sequence[int], holders: GroupedRanks, machine: Machine) -> int:
    """Say into how many shares elements are cut, so that all of a group add some.

    Parameters
    ----------
    reducers : sequence of int
        Where values are wanted.
    holders : GroupedRanks
        Ranks that hold the terms.
    machine : Machine
        Their groups.

    Returns
    -------
    int
        At least 1: terms in the largest group that sends its sum to another.
    """
    return max(
        (
            len(members)
            for row, inside in zip(machine.rows, holders.inside, strict=True)
            for group, members in inside.items()
            if any(row[reducer] != group for reducer in reducers)
        ),
        default=1,
    )


def holder(ranks: list[int], to: int, machine: Machine, number: int) -> int:
    """Choose which of the ranks that hold the same term gives it.

    Parameters
    ----------
    ranks : list of int
        At least one, ascending.
    to : int
        Where the value is wanted.
    machine : Machine
        Their groups.
    number : int
        Of the elements; chooses among groups that are equally near, for all terms
        alike, so that terms come from few groups.

    Returns
    -------
    int
        ``to``, or one of the nearest.
    """
    if to in ranks:
        return to
    for row in machine.rows[:-1]:
        if len(ranks) == 1:
            break
        group = row[to]
        near = [rank for rank in ranks if row[rank] == group]
        if not near:
            groups = sorted({row[rank] for rank in ranks})
            group = groups[turn(number, len(groups))]
            number //= len(groups)
            near = [rank for rank in ranks if row[rank] == group]
        ranks = near
    return ranks[turn(number, len(ranks))]
