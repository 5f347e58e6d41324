"""Recursive doubling: partners at distance 1, 2, 4, ... exchange all they have.

The fewest messages there are, ``log2 P`` a rank, each of all the data: for
small data.  Runs of members stay together and lower members stay left, so it
serves operands that do not commute and gives every rank the same bits [1]_.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp. Optimization of collective
   communication operations in MPICH. IJHPCA 19(1), 2005, sections 4.1, 4.5.
"""

from __future__ import annotations

from closeranks.collectives.builders.patterns.running_sum import Exchange, RunningSum
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.chunks import Chunks
from closeranks.collectives.plans.power_of_two import Fold, fold
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Stage, Writing, passed


def doubling_allreduce(
    out: Script,
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
    out : Script
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


def _exchanges(folded: Fold, members: Members, me: int, slot: int) -> list[Exchange]:
    """List the rounds of a member that has a place."""
    place = folded.place(me)
    exchanges = []
    if me < 2 * folded.rest:
        exchanges.append(Exchange(members[me - 1], lower=True, sends=False, slot=slot))
    for turn in range(folded.places.bit_length() - 1):
        distance = 1 << turn
        peer = members[folded.member(place ^ distance)]
        exchanges.append(Exchange(peer, bool(place & distance), sends=True, slot=slot + 1 + turn))
    return exchanges


def doubling_allgather(
    out: Script,
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
    out : Script
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
