"""Rings: every rank exchanges messages with its two neighbours only.

A ring all-reduce sends the least bytes there are, in as many messages as
ranks: for large data [1]_.

References
----------
.. [1] P. Patarasuk, X. Yuan. Bandwidth optimal all-reduce algorithms for
   clusters of workstations. JPDC 69(2), 2009, section 4.
"""

from __future__ import annotations

from closeranks.collectives.plans.block import Block, cut
from closeranks.collectives.plans.plan_type import (
    BlockOf,
    Members,
    Stage,
    Window,
    Writing,
    bring,
    passed,
)
from closeranks.collectives.plans.schedule import After, Schedule

#: Chunks on the way in a reduce-scatter: one is summed while the next arrives.
_ROOMS = 2
#: Messages in flight in an allgather.
_WIDTH = 4


def ring_reduce_scatter(
    out: Schedule,
    members: Members,
    me: int,
    source: BlockOf,
    target: Block,
    largest: int,
    after: After,
    slot: int,
) -> Writing:
    """Reduce every chunk on its way round the ring to its owner.

    Sends ``P - 1`` messages, one of each other member's chunks.  Needs
    operands that commute.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the ring.
    me : int
        Own place in ``members``.
    source : callable
        ``source(j)`` is this rank's operand of member ``j``'s chunk.
    target : Block
        Where the own chunk's result goes; may be the memory of ``source(me)``.
    largest : int
        Items of the largest chunk.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``P - 1``.
    """
    size = len(members)
    own = bring(out, source(me), target, after)
    if size == 1:
        return Stage(own)
    left, right = members[me - 1], members[(me + 1) % size]
    work = out.scratch(largest * min(_ROOMS, size - 1))
    users: list[After] = [()] * _ROOMS
    first = out.send(right, source((me - 1) % size), slot, after)
    chain = after
    for turn in range(size - 2):
        operand = source((me - 2 - turn) % size)
        which = turn % _ROOMS
        room = Block(work, which * largest, operand.count)
        came = out.receive(left, room, slot + turn, users[which])
        added = out.reduce(operand, room, (came, *chain))
        sent = out.send(right, room, slot + turn + 1, (added,))
        users[which] = passed(sent, users[which])
        chain = passed(added, chain)
        yield
    which = (size - 2) % _ROOMS
    room = Block(work, which * largest, target.count)
    came = out.receive(left, room, slot + size - 2, users[which])
    added = out.reduce(room, target, (came, *chain, *own))
    return Stage(passed(added, chain), (first,))


def ring_allgather(
    out: Schedule,
    members: Members,
    me: int,
    chunks: BlockOf,
    after: After,
    slot: int,
    free: After = (),
) -> Writing:
    """Pass every member's chunk round the ring.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the ring.
    me : int
        Own place in ``members``.
    chunks : callable
        ``chunks(j)`` is the place of member ``j``'s chunk; the own one is there.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``P - 1``.
    free : tuple of int
        Further steps to wait for before the others' chunks are written.
    """
    size = len(members)
    left, right = members[me - 1], members[(me + 1) % size]
    coming, going = Window(_WIDTH, after + free), Window(_WIDTH)
    ready = after
    for turn in range(size - 1):
        sent = out.send(right, chunks((me - turn) % size), slot + turn, ready + going.credit())
        going.admit(sent)
        place = chunks((me - 1 - turn) % size)
        came = out.receive(left, place, slot + turn, coming.credit())
        coming.admit(came)
        ready = (came,)
        yield
    return Stage(coming.tail(), going.tail())


def ring_allreduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Reduce-scatter, then allgather: ``2 (P - 1)`` messages of ``1 / P`` each.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the ring.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``2 (P - 1)``.
    """
    size = len(members)
    operands, results = cut(source, size), cut(target, size)
    own, largest = results(me), results.largest
    summed = yield from ring_reduce_scatter(out, members, me, operands, own, largest, after, slot)
    return (
        yield from ring_allgather(
            out, members, me, results, summed.done, slot + size - 1, summed.busy
        )
    )
