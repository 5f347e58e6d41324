"""Recursive doubling and halving, for any number of members.

`Fold` pairs up the first ``2 rem`` members: the even member leaves for the
time of the exchange, and its odd neighbour stands for both.  The order of the
members is kept, so runs of places are runs of members.

Doubling: partners at distance 1, 2, 4, ... exchange all their data.  It sends
the fewest messages there are, ``log2 P`` a rank, each of all the data: for
small data.  Runs of members stay together and lower members stay left, so it
serves operands that do not commute and gives every rank the same bits [1]_.

Halving: partners exchange halves, then quarters, then eighths.  It sends the
bytes of a ring in ``log2 P`` messages, for medium and large data [1]_, [2]_.
Windows of chunks shrink while the sums are taken and grow back while they are
spread.  If any member may end with any chunk, partners are at distance 1, 2,
4, ...: the largest messages stay with the nearest neighbours and runs of
members stay together, so operands need not commute.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp. Optimization of collective
   communication operations in MPICH. IJHPCA 19(1), 2005, sections 4.1, 4.5.
.. [2] R. Rabenseifner. Optimization of collective reduction operations.
   ICCS 2004, section 3.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from closeranks.collectives.builders.patterns.prefix_scan import RunningSum, ScanRound
from closeranks.collectives.plans.block import Block, Chunks, cut
from closeranks.collectives.plans.plan_type import Members, Stage, Writing, bring, passed
from closeranks.collectives.plans.schedule import After, Schedule


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
        """Return the member at a place."""
        return 2 * place + 1 if place < self.rest else place + self.rest

    def edge(self, place: int) -> int:
        """Return the first member that ``place`` stands for; also for ``places``."""
        return place + min(place, self.rest)


def fold(size: int) -> Fold:
    """Fold ``size`` members, at least 1, to a power of two."""
    places = 1 << (size.bit_length() - 1)
    return Fold(size, places, size - places)


def doubling_allreduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Reduce ``source`` to ``target`` on every member, in the order of members.

    ``log2 P`` rounds; where P is no power of two, two more (see `fold`).

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses at most ``log2 P + 2``.
    """
    folded = fold(len(members))
    last = slot + folded.places.bit_length()
    if source.count == 0:
        return Stage(after)
    if folded.place(me) < 0:
        sent = out.send(members[me + 1], source, slot, after)
        came = out.receive(members[me + 1], target, last, (sent,))
        return Stage((came,))
    exchanges = _exchanges(folded, members, me, slot)
    running = RunningSum(out, source, target, after, exchanges)
    for exchange in exchanges:
        running.take(exchange)
        yield
    done = running.finish()
    if me < 2 * folded.rest:
        return Stage(done, (out.send(members[me - 1], target, last, done),))
    return Stage(done)


def _exchanges(folded: Fold, members: Members, me: int, slot: int) -> list[ScanRound]:
    """List the rounds of a member that has a place."""
    place = folded.place(me)
    exchanges = []
    if me < 2 * folded.rest:
        exchanges.append(ScanRound(members[me - 1], lower=True, sends=False, slot=slot))
    for turn in range(folded.places.bit_length() - 1):
        distance = 1 << turn
        peer = members[folded.member(place ^ distance)]
        exchanges.append(ScanRound(peer, bool(place & distance), sends=True, slot=slot + 1 + turn))
    return exchanges


def doubling_allgather(
    out: Schedule,
    members: Members,
    me: int,
    chunks: Chunks,
    after: After,
    slot: int,
    free: After = (),
) -> Writing:
    """Gather all chunks everywhere: windows of chunks double each round.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    chunks : Chunks
        Member ``j``'s chunk is ``chunks(j)``; the own one is there.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses at most ``log2 P + 2``.
    free : tuple of int
        Further steps to wait for before the others' chunks are written.
    """
    size = len(members)
    folded = fold(size)
    place, first = folded.place(me), after + free
    last = slot + folded.places.bit_length()
    if place < 0:
        sent = out.send(members[me + 1], chunks(me), slot, after)
        came = out.receive(members[me + 1], chunks.span(0, size), last, (sent, *first))
        return Stage(passed(came, after))
    have, sends = after, []
    if me < 2 * folded.rest:
        have = (*have, out.receive(members[me - 1], chunks(me - 1), slot, first))
    for turn in range(folded.places.bit_length() - 1):
        base = place >> turn << turn
        low, high = folded.edge(base), folded.edge(base + (1 << turn))
        peer = members[folded.member(place ^ (1 << turn))]
        sends.append(out.send(peer, chunks.span(low, high), slot + 1 + turn, have))
        base ^= 1 << turn
        place_of_peer = chunks.span(folded.edge(base), folded.edge(base + (1 << turn)))
        have = (*have, out.receive(peer, place_of_peer, slot + 1 + turn, first))
        yield
    if me < 2 * folded.rest:
        sends.append(out.send(members[me - 1], chunks.span(0, size), last, have))
    return Stage(have, tuple(sends))


_Span = tuple[int, int]


@dataclass
class _Halves:
    """A sum of which this rank keeps half after half.

    Attributes
    ----------
    here : Chunks
        Where the sum is, by places.
    ready : tuple of int
        Steps to wait for before it is read.
    fresh : bool
        Whether it is still the caller's operand.
    kept : tuple of int
        Chunks that are left, ``[low, high)``.
    trail : list
        Per round: distance, peer, chunks kept, chunks given, the send.
    """

    here: Chunks
    ready: After
    kept: _Span
    fresh: bool = True
    trail: list[tuple[int, int, _Span, _Span, int]] = field(default_factory=list)

    @property
    def sends(self) -> After:
        """The sends so far."""
        return tuple(sent for *_, sent in self.trail)


def halving_reduce_scatter(
    out: Schedule,
    members: Members,
    me: int,
    source: Chunks,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Reduce every member's chunk to it in ``log2 P`` rounds.

    Needs operands that commute; where P is no power of two, ``2 (P - 2^k)``
    members send and receive the whole vector or their chunk once more.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source : Chunks
        ``source(j)`` is this rank's operand of member ``j``'s chunk.
    target : Block
        Where the own chunk's result goes; may be the memory of ``source(me)``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses at most ``log2 P + 2``.
    """
    size = len(members)
    folded = fold(size)
    last = slot + folded.places.bit_length()
    if folded.place(me) < 0:
        sent = out.send(members[me + 1], source.span(0, size), slot, after)
        came = out.receive(members[me + 1], target, last, (sent, *after))
        return Stage((came, sent, *after))
    by_place = Chunks(source.buffer, lambda p: source.edge(folded.edge(p)), 0)
    distances = [folded.places >> k for k in range(1, folded.places.bit_length())]
    halves = yield from _halve(out, members, me, folded, by_place, None, distances, after, slot)
    shift = halves.here.edge(halves.kept[0]) - source.edge(folded.edge(halves.kept[0]))
    own = source(me)
    own = Block(halves.here.buffer, own.start + shift, own.count)
    done = bring(out, own, target, halves.ready)
    if me >= 2 * folded.rest:
        return Stage(done, halves.sends)
    others = source(me - 1)
    others = Block(halves.here.buffer, others.start + shift, others.count)
    sent = out.send(members[me - 1], others, last, halves.ready)
    return Stage(done, (*halves.sends, sent))


def rabenseifner_allreduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Reduce-scatter by halving, then allgather by doubling, in the order of members.

    ``2 log2 P`` messages, ``2 (P - 1) / P`` of the vector; where P is no power
    of two, two more messages of the whole vector on ``2 (P - 2^k)`` members.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses at most ``2 log2 P + 2``.
    """
    folded = fold(len(members))
    rounds = folded.places.bit_length() - 1
    last = slot + 1 + 2 * rounds
    if folded.place(me) < 0:
        sent = out.send(members[me + 1], source, slot, after)
        came = out.receive(members[me + 1], target, last, (sent, *after))
        return Stage((came, *after))
    operands, results = cut(source, folded.places), cut(target, folded.places)
    distances = [1 << k for k in range(rounds)]
    halves = yield from _halve(out, members, me, folded, operands, results, distances, after, slot)
    have = _settle(out, halves, results)
    sends = []
    for turn, (_, peer, kept, given, sent) in enumerate(reversed(halves.trail)):
        at = slot + 1 + rounds + turn
        sends.append(out.send(peer, results.span(*kept), at, have))
        have = (*have, out.receive(peer, results.span(*given), at, (sent,)))
        yield
    if me < 2 * folded.rest:
        sends.append(out.send(members[me - 1], target, last, have))
    return Stage(have, tuple(sends))


def rabenseifner_reduce(
    out: Schedule,
    members: Members,
    me: int,
    root: int,
    source: Block,
    target: Block | None,
    after: After,
    slot: int,
) -> Writing:
    """Reduce-scatter by halving, then gather the chunks to the root, in order.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me, root : int
        Own place and the root's in ``members``.
    source : Block
        Operand, contiguous.
    target : Block or None
        Result, on the root; may be the memory of ``source``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses at most ``2 log2 P + 2``.
    """
    folded = fold(len(members))
    rounds = folded.places.bit_length() - 1
    last = slot + 1 + 2 * rounds
    if folded.place(me) < 0:
        sent = out.send(members[me + 1], source, slot, after)
        if target is None:
            return Stage(after, (sent,))
        return Stage((out.receive(members[me + 1], target, last, (sent, *after)), *after))
    if target is None:
        target = Block(out.scratch(source.count), 0, source.count)
    operands, results = cut(source, folded.places), cut(target, folded.places)
    distances = [1 << k for k in range(rounds)]
    halves = yield from _halve(out, members, me, folded, operands, results, distances, after, slot)
    have = _settle(out, halves, results)
    collector = root if folded.place(root) >= 0 else root + 1
    away = folded.place(me) ^ folded.place(collector)
    for turn, (distance, peer, kept, given, sent) in enumerate(reversed(halves.trail)):
        at = slot + 1 + rounds + turn
        if away & distance:
            sent = out.send(peer, results.span(*kept), at, have)
            return Stage(have, (*halves.sends, sent))
        have = (*have, out.receive(peer, results.span(*given), at, (sent,)))
        yield
    if root == collector:
        return Stage(have)
    return Stage(have, (out.send(members[root], target, last, have),))


def _settle(out: Schedule, halves: _Halves, results: Chunks) -> After:
    """Bring the chunk that is left to its place among the results."""
    return bring(out, halves.here.span(*halves.kept), results.span(*halves.kept), halves.ready)


def _halve(
    out: Schedule,
    members: Members,
    me: int,
    folded: Fold,
    source: Chunks,
    home: Chunks | None,
    distances: Iterable[int],
    after: After,
    slot: int,
) -> Generator[None, None, _Halves]:
    """Exchange halves with the places at ``distances``, after the fold's partner.

    With a ``home``, where sums may grow, lower places stay left operands.
    """
    place = folded.place(me)
    halves = _Halves(source, after, (0, folded.places))
    if me < 2 * folded.rest:
        _add(out, halves, home, members[me - 1], slot, lower=True)
        yield
    for turn, distance in enumerate(distances):
        peer = members[folded.member(place ^ distance)]
        lower = bool(place & distance)
        low, high = halves.kept
        middle = (low + high) // 2
        given, kept = ((low, middle), (middle, high)) if lower else ((middle, high), (low, middle))
        at = slot + 1 + turn
        sent = out.send(peer, halves.here.span(*given), at, halves.ready)
        halves.kept = kept
        halves.trail.append((distance, peer, kept, given, sent))
        _add(out, halves, home, peer, at, lower=lower)
        yield
    return halves


def _add(
    out: Schedule, halves: _Halves, home: Chunks | None, peer: int, slot: int, *, lower: bool
) -> None:
    """Receive the kept chunks of ``peer`` and add them."""
    mine = halves.here.span(*halves.kept)
    room = Block(out.scratch(mine.count), 0, mine.count)
    came = out.receive(peer, room, slot)
    if lower and home is not None:
        if halves.fresh:
            mine = home.span(*halves.kept)
            source = halves.here.span(*halves.kept)
            halves.ready = bring(out, source, mine, halves.ready)
            halves.here = home
        added = out.reduce(room, mine, (came, *halves.ready))
    else:
        added = out.reduce(mine, room, (came, *halves.ready))
        edge, base = halves.here.edge, mine.start
        halves.here = Chunks(room.buffer, lambda p: edge(p) - base, mine.count)
    halves.fresh = False
    halves.ready = passed(added, halves.ready)
