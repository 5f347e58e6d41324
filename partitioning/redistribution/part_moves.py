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
    GroupedRanks,
    Links,
    Machine,
    links,
    useful_shares,
)
from closeranks.partitioning.redistribution.part_holders import Key, Overlaps, Part, PartHolders
from closeranks.partitioning.redistribution.reduction_tree import Role, holder, role, useful_cuts

#: Elements of a share at least, if a part is cut so that equal ranks share the work.
_LEAST_SHARE: Final = 1024


class Move(NamedTuple):
    """A message of a conversion.

    Attributes
    ----------
    stage : int
        Stages follow each other.  Those up to 0 carry terms of reductions, or sums
        of them: -L what is added over the links of level L, the outermost being 0.
    sender, receiver : int
        Ranks.
    box : tuple of (int, int)
        Which elements, in numbers of the global array.
    has_arrived : bool
        Whether the sender does not take them from its source, but from where they
        are since a stage before: values from its target, a sum of terms from where
        it was put.
    term : int
        Which input of the receiver's reduction they are; -1 if they are values.
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
    """Terms, or sums of terms, that a rank reduces after a stage.

    Attributes
    ----------
    stage : int
        The stage that has brought them.
    rank : int
        The rank.
    box : tuple of (int, int)
        Which elements.
    senders : tuple of int
        Where each input comes from, in the order in which they are combined; the
        rank itself: from its source, or what it has reduced before.
    op : str
        "sum", "min" or "max".
    goes_on : bool
        Whether the result is sent to a rank outside, and kept aside until then;
        else it is a value, in the target.
    has_reduced : bool
        Whether the rank has reduced some of these terms in a stage before; their
        sum lies where this result goes to.
    """

    stage: int
    rank: int
    box: Bounds
    senders: tuple[int, ...]
    op: str
    goes_on: bool = False
    has_reduced: bool = False


class RankPart(NamedTuple):
    """What one rank does in a conversion.

    Attributes
    ----------
    fills, copies, reductions, sends, receives : tuple
        Steps of each kind; messages and reductions by stage.
    """

    fills: tuple[Fill, ...]
    copies: tuple[Copy, ...]
    reductions: tuple[Reduction, ...]
    sends: tuple[Move, ...]
    receives: tuple[Move, ...]

    @property
    def sums(self) -> list[Bounds]:
        """Boxes of which the rank keeps a sum aside, to send it on."""
        return list(dict.fromkeys(step.box for step in self.reductions if step.goes_on))


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

    def reduce(self, box: Bounds, found: Role, op: str) -> None:
        """Note which terms are added here, and to whom the sum goes."""
        goes_on, has_reduced = found.receiver >= 0, False
        for level, senders, are_sums in found.additions:
            self.reductions.append(
                Reduction(-level, self.rank, box, senders, op, goes_on, has_reduced)
            )
            self.receives += [
                Move(-level, sender, self.rank, box, is_sum, term)
                for term, (sender, is_sum) in enumerate(zip(senders, are_sums, strict=True))
                if sender != self.rank
            ]
            has_reduced = True
        if goes_on:
            self.sends.append(
                Move(-found.level, self.rank, found.receiver, box, has_reduced, found.place)
            )


class TermHolders(NamedTuple):
    """The ranks that hold the terms of a part.

    Attributes
    ----------
    ranks : list of list of int
        Term -> those that hold it.
    members : dict of int to int
        Each of them -> its term.
    alone : GroupedRanks or None
        By the groups, if one rank holds each term.
    """

    ranks: list[list[int]]
    members: dict[int, int]
    alone: GroupedRanks | None


class Mover:
    """Says for each rank what it does to turn one layout into another.

    Parameters
    ----------
    source, target : Layout
        Of one global shape and number of ranks.
    topology : Topology
        The ranks; senders are the nearest by it.
    is_direct : bool
        Whether terms go straight to the rank that wants the value.

    Attributes
    ----------
    terms : int
        Terms of which a value is reduced; 1 if it is not.
    """

    def __init__(
        self, source: Layout, target: Layout, topology: Topology, *, is_direct: bool = False
    ) -> None:
        kept = kept_axes(source, target)
        self._source = PartHolders(source, kept, first=False)
        self._target = PartHolders(target, kept, first=True)
        self._wanted = Overlaps(target, source)  # target part -> source parts
        self._given = Overlaps(source, target)
        self._machine = Machine.of(topology)
        self._adders = Machine(self._machine.rows[-1:]) if is_direct else self._machine
        self.terms = self._source.terms
        self._op = next((how.op for how in source.placements if isinstance(how, Partial)), "")
        self._receivers = lru_cache(maxsize=64)(self._found_receivers)
        self._terms = lru_cache(maxsize=64)(self._found_terms)
        self._holders = lru_cache(maxsize=64)(self._found_holders)

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
            fills, tuple(work.copies), tuple(sorted(work.reductions)),
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
        self, work: _Work, box: Bounds, parts: tuple[Part, Part], key: Key, receivers: GroupedRanks
    ) -> None:
        """Cut a class into shares; one rank gets the value of each, and passes it on."""
        terms = self._terms(parts[0], key)
        reducers = [rank for rank in receivers.ranks if rank in terms.members] or receivers.ranks
        first, second = self._numbers(*parts)
        for at, part in enumerate(shares(box, len(reducers))):
            pieces = shares(part, self._cuts(part, parts[0], reducers, terms))
            for place, share in enumerate(pieces, at * len(pieces)):
                if not cells(share):
                    continue
                chooses = first + second + place
                if work.rank == reducers[at] or self._gives(
                    work.rank, terms, reducers[at], chooses
                ):
                    holders = self._chosen(terms, reducers[at], chooses)
                    number = second * len(reducers) * len(pieces) + place
                    found = role(work.rank, reducers[at], holders, self._adders, number)
                    work.reduce(share, found, self._op)
                turned = first + place, second
                passed = links(work.rank, reducers[at : at + 1], receivers, self._machine, turned)
                work.link(share, passed, has_arrived=True)

    def _cuts(self, box: Bounds, given: Part, reducers: list[int], terms: TermHolders) -> int:
        """Say into how many pieces a share is cut, so that ranks of a group add equally."""
        shared = self._given.count(given) * len(reducers)
        if shared >= len(terms.members) or len(self._adders.rows) == 1:
            return 1
        holders = self._chosen(terms, reducers[0], 0)
        useful = -(-useful_cuts(reducers, holders, self._adders) // shared)
        return max(1, min(useful, cells(box) // _LEAST_SHARE))

    def _gives(self, rank: int, terms: TermHolders, reducer: int, number: int) -> bool:
        """Say whether a rank is one of those that `_chosen` gives."""
        term = terms.members.get(rank)
        if term is None or terms.alone is not None:
            return term is not None
        return holder(terms.ranks[term], reducer, self._machine, number) == rank

    def _chosen(self, terms: TermHolders, reducer: int, number: int) -> GroupedRanks:
        """Give who gives each term: the reducer itself, or one of the nearest."""
        if terms.alone is not None:
            return terms.alone
        found = (holder(ranks, reducer, self._machine, number) for ranks in terms.ranks)
        return self._holders(tuple(found))

    def _numbers(self, given: Part, taken: Part) -> tuple[int, int]:
        """Give the places of two parts among those that the other one meets."""
        return self._wanted.number(taken, given), self._given.number(given, taken)

    def _counts(self, given: Part, taken: Part) -> tuple[int, int]:
        """Give how many parts each of two parts meets."""
        return self._wanted.count(taken), self._given.count(given)

    def _found_receivers(self, taken: Part, key: Key) -> GroupedRanks:
        return GroupedRanks(self._target.ranks(taken, key), self._machine)

    def _found_terms(self, given: Part, key: Key) -> TermHolders:
        ranks = self._source.ranks_by_term(given, key)
        alone = all(len(some) == 1 for some in ranks)
        members = {rank: term for term, some in enumerate(ranks) for rank in some}
        by_group = self._holders(tuple(members)) if alone else None
        return TermHolders(ranks, members, by_group)

    def _found_holders(self, ranks: tuple[int, ...]) -> GroupedRanks:
        return GroupedRanks(list(ranks), self._adders)


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
