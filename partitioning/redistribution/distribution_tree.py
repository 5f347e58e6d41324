"""How elements get from ranks that hold them to all that want them.

Level by level, from the outside in.  A group of ranks in which nobody holds
the elements, and somebody wants them, gets them once: by one of those that
want them, which passes them on inside.  So no rank receives what it does not
want, and the elements enter each group at most once.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from closeranks.comms.topology.topology import Topology


class Machine:
    """Groups of ranks by level, as lists.

    Parameters
    ----------
    rows : list of list of int
        Level, outermost first -> group of each rank; ranks at the last.
    """

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    @classmethod
    def of(cls, topology: Topology) -> Machine:
        """Read a topology."""
        return cls([row.tolist() for row in topology.groups])


class GroupedRanks:
    """Ranks that want elements, or hold terms of them, by the groups of a machine.

    Parameters
    ----------
    ranks : list of int
        Those of a group stay in this order, and so do groups by their first.
    machine : Machine
        Their groups.
    """

    def __init__(self, ranks: list[int], machine: Machine) -> None:
        self.ranks = ranks
        #: Level -> group -> those in it.
        self.inside: list[dict[int, list[int]]] = []
        #: Level -> group of the level outside, or -1 -> groups in it that have some.
        self.groups: list[dict[int, list[int]]] = []
        outer: list[int] | None = None
        for row in machine.rows:
            inside: dict[int, list[int]] = {}
            for rank in ranks:
                inside.setdefault(row[rank], []).append(rank)
            groups: dict[int, list[int]] = {}
            for group, some in inside.items():
                groups.setdefault(-1 if outer is None else outer[some[0]], []).append(group)
            self.inside.append(inside)
            self.groups.append(groups)
            outer = row


class Links(NamedTuple):
    """What one rank does for some elements.

    Attributes
    ----------
    sender : int
        From which rank it gets them; -1 if from nobody.
    stage : int
        In which stage it gets them, from 1 on; 0 if it does not.
    receivers : list of int
        To which ranks it gives them, in the stage after.
    """

    sender: int
    stage: int
    receivers: list[int]


_NOTHING = Links(-1, 0, [])


def turn(number: int, count: int) -> int:
    """Choose one of several by a number, evenly also if the numbers have a stride.

    Parameters
    ----------
    number : int
        At least 0.
    count : int
        How many there are.

    Returns
    -------
    int
        0..count-1.
    """
    return (number + number // count) % count


def useful_shares(
    holders: list[int], receivers: GroupedRanks, machine: Machine, counts: tuple[int, int]
) -> int:
    """Say into how many shares elements are cut, so that equal ranks share the work.

    Where one rank of several would pass on all for its group, or send all for its
    equals, each gets a share; less if other elements keep these busy already.

    Parameters
    ----------
    holders : list of int
        Ranks that have them.
    receivers : GroupedRanks
        Ranks that want them.
    machine : Machine
        Their groups.
    counts : (int, int)
        Parts that have what the receivers want, and parts that want what the
        holders have.

    Returns
    -------
    int
        At least 1.
    """
    if len(holders) == 1 == len(receivers.ranks):
        return 1
    most, outer = 1, None
    for row, inside, groups in zip(machine.rows, receivers.inside, receivers.groups, strict=True):
        filled = {row[holder] for holder in holders}
        roots = Counter(-1 if outer is None else outer[holder] for holder in holders)
        for group, able in roots.items():
            needing = [inner for inner in groups.get(group, ()) if inner not in filled]
            if needing:
                entering = max(len(inside[inner]) for inner in needing)
                most = max(most, -(-entering // counts[0]), -(-able // (counts[1] * len(needing))))
        outer = row
    return most


def links(
    rank: int,
    holders: list[int],
    receivers: GroupedRanks,
    machine: Machine,
    numbers: tuple[int, int],
) -> Links:
    """Give what one rank does for some elements.

    Parameters
    ----------
    rank : int
        The rank.
    holders : list of int
        Ranks that have them, ascending.
    receivers : GroupedRanks
        Ranks that want them; these may be among the holders.
    machine : Machine
        Its groups.
    numbers : (int, int)
        Of the part that has the elements among those that the receivers want,
        and the other way round: they spread the work.

    Returns
    -------
    Links
        The same, whichever of the ranks asks.
    """
    wanting = receivers.ranks
    if len(wanting) == 1 == len(holders):
        if wanting == holders:
            return _NOTHING
        if rank == wanting[0]:
            return Links(holders[0], 1, [])
        return Links(-1, 0, wanting if rank == holders[0] else [])
    given, taken = numbers
    roots, outer, stage = holders, -1, 0
    found: list[int] = []
    sender, received = -1, 0
    for row, inside, groups in zip(machine.rows, receivers.inside, receivers.groups, strict=True):
        mine = row[rank]
        near = [root for root in roots if row[root] == mine]
        waits = not near and mine in inside
        if rank in roots or waits:
            filled = {row[root] for root in roots}
            needing = [group for group in groups.get(outer, ()) if group not in filled]
            for place, group in enumerate(needing):
                entry = inside[group][turn(given, len(inside[group]))]
                source = roots[turn(taken * len(needing) + place, len(roots))]
                if source == rank:
                    found.append(entry)
                if group == mine:
                    stage += 1
                    if entry == rank:
                        sender, received = source, stage
                    near = [entry]
        if not near:
            break  # nobody near wants any
        roots, outer = near, mine
    return Links(sender, received, found)
