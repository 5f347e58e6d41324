"""What one rank does in a conversion: copies, messages and reductions, as data.

Elements are looked at in classes: those that one part of the source and one
part of the target share.  All elements of a class have the same holders and
the same receivers.  A rank takes part in the classes of its own two parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.layout.box import Bounds, cells, intersection
from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Partial
from closeranks.partitioning.redistribution.distribution_tree import (
    Links,
    Machine,
    Receivers,
    links,
    turn,
    useful_shares,
)
from closeranks.partitioning.redistribution.part_holders import Key, Overlaps, Part, PartHolders

#: Elements of a share at least, if a part is cut so that equal ranks share the work.
_LEAST_SHARE: Final = 1024


class Move(NamedTuple):
    """A message of a conversion.

    Attributes
    ----------
    stage : int
        Stages follow each other; 0 carries terms of a reduction.
    sender, receiver : int
        Ranks.
    box : tuple of (int, int)
        Which elements, in numbers of the global array.
    has_arrived : bool
        Whether the sender takes them from its target, where they have arrived
        or were reduced in a stage before, not from its source.
    term : int
        Which term of a reduction they are; -1 if they are values.
    """

    stage: int
    sender: int
    receiver: int
    box: Bounds
    has_arrived: bool = False
    term: int = -1


class Copy(NamedTuple):
    """Elements that a rank has, copied from its source to its target.

    Attributes
    ----------
    rank : int
        The rank.
    box : tuple of (int, int)
        Which elements.
    """

    rank: int
    box: Bounds


class Fill(NamedTuple):
    """A target that is filled with the neutral element of its reduction.

    Attributes
    ----------
    rank : int
        The rank.
    box : tuple of (int, int)
        Its whole part.
    op : str
        "sum", "min" or "max".
    """

    rank: int
    box: Bounds
    op: str


class Reduction(NamedTuple):
    """Terms that a rank reduces into its target, after stage 0.

    Attributes
    ----------
    rank : int
        The rank.
    box : tuple of (int, int)
        Which elements.
    senders : tuple of int
        Where each term comes from, in the order in which they are combined; the
        rank itself: from its source.
    op : str
        "sum", "min" or "max".
    """

    rank: int
    box: Bounds
    senders: tuple[int, ...]
    op: str


class RankPart(NamedTuple):
    """What one rank does in a conversion.

    Attributes
    ----------
    fills, copies, reductions, sends, receives : tuple
        Steps of each kind; messages by stage.
    """

    fills: tuple[Fill, ...]
    copies: tuple[Copy, ...]
    reductions: tuple[Reduction, ...]
    sends: tuple[Move, ...]
    receives: tuple[Move, ...]


class _Work:
    """The part of a rank while it is put together."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.copies: list[Copy] = []
        self.reductions: list[Reduction] = []
        self.sends: list[Move] = []
        self.receives: list[Move] = []

    def link(self, box: Bounds, found: Links, *, has_arrived: bool) -> None:
        """Note from whom elements come, and to whom they go."""
        later = has_arrived or found.stage > 0
        if found.stage:
            # Whether its sender has them from elsewhere is no matter here: see `Move`.
            self.receives.append(
                Move(found.stage, found.sender, self.rank, box, has_arrived or found.stage > 1)
            )
        self.sends += [
            Move(found.stage + 1, self.rank, receiver, box, later) for receiver in found.receivers
        ]


class Mover:
    """Says for each rank what it does to turn one layout into another.

    Parameters
    ----------
    source, target : Layout
        Of one global shape and number of ranks.
    topology : Topology
        The ranks; senders are the nearest by it.

    Attributes
    ----------
    terms : int
        Terms of which a value is reduced; 1 if it is not.
    """

    def __init__(self, source: Layout, target: Layout, topology: Topology) -> None:
        kept = kept_axes(source, target)
        self._source = PartHolders(source, kept, first=False)
        self._target = PartHolders(target, kept, first=True)
        self._wanted = Overlaps(target, source)  # target part -> source parts
        self._given = Overlaps(source, target)
        self._machine = Machine(topology)
        self.terms = self._source.terms
        self._op = next((how.op for how in source.placements if isinstance(how, Partial)), "")
        self._receivers = lru_cache(maxsize=64)(self._found_receivers)

    def part(self, rank: int) -> RankPart:
        """Give what a rank does.

        Parameters
        ----------
        rank : int
            A rank of the meshes.

        Returns
        -------
        RankPart
            The same for equal arguments, on whatever rank.
        """
        work = _Work(rank)
        key = self._source.key(rank)
        target = self._target.layout
        mine = target.part(rank)
        takes = rank in self._target.ranks(mine, key)
        for given, taken in self._classes(rank, takes=takes):
            box = intersection(_bounds(self._source.layout, given), _bounds(target, taken))
            if box is not None:
                self._add(work, box, given, taken, key)
        fills: tuple[Fill, ...] = ()
        if not takes and cells(target.bounds_of(rank)):
            op = next(how.op for how in target.placements if isinstance(how, Partial))
            fills = (Fill(rank, target.bounds_of(rank), op),)
        return RankPart(
            fills, tuple(work.copies), tuple(work.reductions),
            tuple(sorted(work.sends)), tuple(sorted(work.receives)),
        )  # fmt: skip

    def _classes(self, rank: int, *, takes: bool) -> Iterator[tuple[Part, Part]]:
        """Give the pairs of source part and target part that concern a rank."""
        given, taken = self._source.layout.part(rank), self._target.layout.part(rank)
        if takes:
            for part in self._wanted.parts(taken):
                yield part, taken
        for part in self._given.parts(given):
            if not takes or part != taken:
                yield given, part

    def _add(self, work: _Work, box: Bounds, given: Part, taken: Part, key: Key) -> None:
        """Add what a rank does for the elements of one class."""
        receivers = self._receivers(taken, key)
        if self._source.terms > 1:
            self._reduce(work, box, (given, taken), key, receivers)
            return
        holders = self._source.ranks(given, key)
        if work.rank in holders and work.rank in receivers.ranks:
            work.copies.append(Copy(work.rank, box))
        if len(holders) == 1 == len(receivers.ranks):
            found = links(work.rank, holders, receivers, self._machine, (0, 0))
            work.link(box, found, has_arrived=False)
            return
        (first, second), counts = self._numbers(given, taken), self._counts(given, taken)
        number = useful_shares(holders, receivers, self._machine, counts)
        number = max(1, min(number, cells(box) // _LEAST_SHARE))
        for at, share in enumerate(shares(box, number)):
            turned = first * number + at, second * number + at
            found = links(work.rank, holders, receivers, self._machine, turned)
            work.link(share, found, has_arrived=False)

    def _reduce(
        self, work: _Work, box: Bounds, parts: tuple[Part, Part], key: Key, receivers: Receivers
    ) -> None:
        """Cut a class into shares; each is reduced by one rank, which passes it on."""
        terms = self._source.ranks_by_term(parts[0], key)
        members = {rank for ranks in terms for rank in ranks}
        reducers = [rank for rank in receivers.ranks if rank in members] or receivers.ranks
        numbers = self._numbers(*parts)
        for at, (reducer, share) in enumerate(
            zip(reducers, shares(box, len(reducers)), strict=True)
        ):
            if not cells(share):
                continue
            senders = tuple(self._term_sender(ranks, reducer, sum(numbers) + at) for ranks in terms)
            if work.rank == reducer:
                work.reductions.append(Reduction(reducer, share, senders, self._op))
                work.receives += [
                    Move(0, sender, reducer, share, term=term)
                    for term, sender in enumerate(senders)
                    if sender != reducer
                ]
            else:
                work.sends += [
                    Move(0, sender, reducer, share, term=term)
                    for term, sender in enumerate(senders)
                    if sender == work.rank
                ]
            turned = numbers[0] + at, numbers[1]
            found = links(work.rank, [reducer], receivers, self._machine, turned)
            work.link(share, found, has_arrived=True)

    def _term_sender(self, ranks: list[int], reducer: int, number: int) -> int:
        """Choose who gives a term to a reducer: itself, or one of the nearest."""
        if reducer in ranks:
            return reducer
        near = self._machine.nearest(ranks, reducer)
        return near[turn(number, len(near))]

    def _numbers(self, given: Part, taken: Part) -> tuple[int, int]:
        """Give the places of two parts among those that the other one meets."""
        return self._wanted.number(taken, given), self._given.number(given, taken)

    def _counts(self, given: Part, taken: Part) -> tuple[int, int]:
        """Give how many parts each of two parts meets."""
        return self._wanted.count(taken), self._given.count(given)

    def _found_receivers(self, taken: Part, key: Key) -> Receivers:
        return Receivers(self._target.ranks(taken, key), self._machine)


def _bounds(layout: Layout, part: Part) -> Bounds:
    """Give the box of a part."""
    return tuple(
        (int(cuts[number]), int(cuts[number + 1]))
        for cuts, number in zip(layout.bounds, part, strict=True)
    )


def kept_axes(source: Layout, target: Layout) -> tuple[int, ...]:
    """Give the mesh axes along which terms stay where they are.

    Parameters
    ----------
    source, target : Layout
        Of one number of ranks.

    Returns
    -------
    tuple of int
        Axes that are partial in both; none if the meshes are not alike.
    """
    same = source.mesh.ranks.shape == target.mesh.ranks.shape
    if not same or not bool((source.mesh.ranks == target.mesh.ranks).all()):
        return ()
    pairs = zip(source.placements, target.placements, strict=True)
    return tuple(
        at for at, (a, b) in enumerate(pairs) if isinstance(a, Partial) and isinstance(b, Partial)
    )


def shares(box: Bounds, count: int) -> list[Bounds]:
    """Cut a box along its longest axis, as ``np.array_split`` does.

    Parameters
    ----------
    box : tuple of (int, int)
        What to cut.
    count : int
        Number of parts.

    Returns
    -------
    list of tuple of (int, int)
        In order; some are empty if the axis is short.
    """
    if count == 1:
        return [box]
    lengths = [stop - start for start, stop in box]
    if not lengths:  # of an array of no axes: an element
        return [box, *[((0, 0),)] * (count - 1)]
    axis = lengths.index(max(lengths))
    each, more = divmod(lengths[axis], count)
    found, start = [], box[axis][0]
    for number in range(count):
        stop = start + each + (number < more)
        found.append((*box[:axis], (start, stop), *box[axis + 1 :]))
        start = stop
    return found
