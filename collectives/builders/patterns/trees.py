"""Trees: from the root to all members, or back, over one member after another.

* Linear: the root exchanges one message with every member.  These are the
  least bytes, and the only way where only the root knows the sizes.
* Chain: every member passes the data on to the next, in segments, all links at
  once.  With ``m`` segments the time is ``(P - 2 + m)`` transfers of one
  segment: for large data, the bytes of one message for any number of ranks.
* Binomial: a member that has the data sends it to the one half as far away.
  ``log2 P`` messages on the longest way, ``P - 1`` in all [1]_.  The subtree
  of place ``v`` is the run ``[v, v + lowbit(v))``, so trees over ranks sorted
  by node enter each node about once.

The root is always member 0 of the group: callers turn the list of members.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp. Optimization of collective
   communication operations in MPICH. IJHPCA 19(1), 2005, sections 4.2 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from closeranks.collectives.builders.patterns.prefix_scan import RunningSum, ScanRound
from closeranks.collectives.plans.block import Block, part
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

#: Messages of the root in flight.
_WINDOW = 32


def linear_gather(
    out: Schedule,
    members: Members,
    me: int,
    root: int,
    source: Block,
    target: BlockOf,
    after: After,
    slot: int,
) -> Writing:
    """Gather the ``source`` of all members on the root.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me, root : int
        Own place and the root's in ``members``.
    source : Block
        Own block.
    target : callable
        On the root, the place of member ``j``'s block; the own one may be the
        memory of ``source``.
    after : tuple of int
        Steps to wait for.
    slot : int
        The only slot.
    """
    if me != root:
        return Stage(after, (out.send(members[root], source, slot, after),))
    own = bring(out, source, target(me), after)
    coming = Window(_WINDOW, after)
    for turn in range(1, len(members)):
        origin = (root + turn) % len(members)
        coming.admit(out.receive(members[origin], target(origin), slot, coming.credit()))
        yield
    return Stage((*own, *coming.tail()))


def linear_scatter(
    out: Schedule,
    members: Members,
    me: int,
    root: int,
    source: BlockOf,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Scatter the root's blocks.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me, root : int
        Own place and the root's in ``members``.
    source : callable
        On the root, member ``j``'s block.
    target : Block
        Where the own block goes.
    after : tuple of int
        Steps to wait for.
    slot : int
        The only slot.
    """
    if me != root:
        return Stage(passed(out.receive(members[root], target, slot, after), after))
    going = Window(_WINDOW, after)
    for turn in range(1, len(members)):
        goal = (root + turn) % len(members)
        going.admit(out.send(members[goal], source(goal), slot, going.credit()))
        yield
    return Stage(bring(out, source(me), target, after), going.tail())


#: Bytes of a segment: large against a message's latency, small against the data.
SEGMENT_BYTES = 128 << 10
#: Segments in flight on a link.
_WIDTH = 4
#: Slots in turn: so many segments later the link is free again.
_SLOTS = 2 * _WIDTH


def chain_segments(count: int, itemsize: int) -> int:
    """Return into how many segments a chain cuts ``count`` items, at least 1."""
    return max(1, min(count, -(-count * itemsize // SEGMENT_BYTES)))


def chain_bcast(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    number: int,
    after: After,
    slot: int,
) -> Writing:
    """Send ``source`` of member 0 down the chain to the ``target`` of all.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the chain, the root first.
    me : int
        Own place in ``members``.
    source : Block
        The block that member 0 sends, contiguous; others may give anything.
    target : Block
        Where it goes; on member 0 may be the memory of ``source``.
    number : int
        Segments.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses 8 in turn.
    """
    coming, going = Window(_WIDTH, after), Window(_WIDTH, after)
    whole = target if me else source
    for index in range(number):
        piece = part(whole, index, number)
        have: After = ()
        if me:
            came = out.receive(members[me - 1], piece, slot + index % _SLOTS, coming.credit())
            coming.admit(came)
            have = (came,)
        if me + 1 < len(members):
            ready = (*have, *going.credit())
            going.admit(out.send(members[me + 1], piece, slot + index % _SLOTS, ready))
        yield
    done = coming.tail() if me else bring(out, source, target, after)
    return Stage(done, going.tail())


#: Where the chunks ``[low, high)`` lie on this rank: blocks in order, mostly one.
BlocksOf = Callable[[int, int], Sequence[Block]]


def parent(me: int) -> int:
    """Return the place above ``me``, which is not 0."""
    return me & (me - 1)


def children(me: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the children of ``me``, nearest first, and where their subtrees end."""
    reach = me & -me if me else 1 << (size - 1).bit_length()
    step = 1
    while step < reach and me + step < size:
        yield me + step, min(me + 2 * step, size)
        step *= 2


def turn_of(child: int) -> int:
    """Return the round in which ``child`` and its parent talk: its lowest set bit."""
    return (child & -child).bit_length() - 1


def binomial_bcast(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
    *,
    empty: bool = False,
) -> Writing:
    """Send ``source`` of member 0 to the ``target`` of all members.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group, the root first.
    me : int
        Own place in ``members``.
    source : Block
        The block that member 0 sends; others may give anything.
    target : Block
        Where it goes; on member 0 may be the memory of ``source``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    empty : bool
        Send empty messages too (a barrier).
    """
    if me:
        came = out.receive(members[parent(me)], target, slot + turn_of(me), after, empty=empty)
        source, have = target, passed(came, after)
    else:
        have = after
    below = list(children(me, len(members)))
    sends = [
        out.send(members[child], source, slot + turn_of(child), have, empty=empty)
        for child, _ in reversed(below)
    ]
    yield
    done = have if me else bring(out, source, target, after)
    return Stage(done, tuple(sends))


def binomial_reduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block | None,
    after: After,
    slot: int,
) -> Writing:
    """Reduce the ``source`` of all members to member 0, in their order.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group, the root first.
    me : int
        Own place in ``members``.
    source : Block
        Own operand, contiguous.
    target : Block or None
        Result on member 0, None on others; may be the memory of ``source``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    """
    if source.count == 0:
        return Stage(after)
    exchanges = [
        ScanRound(members[child], lower=False, sends=False, slot=slot + turn_of(child))
        for child, _ in children(me, len(members))
    ]
    running = RunningSum(out, source, target, after, exchanges)
    for exchange in exchanges:
        running.take(exchange)
        yield
    if me == 0:
        return Stage(running.finish())
    sent = out.send(members[parent(me)], running.here, slot + turn_of(me), running.ready)
    return Stage(running.ready, (sent,))


def binomial_gather(
    out: Schedule,
    members: Members,
    me: int,
    pieces: BlocksOf,
    after: After,
    slot: int,
    free: After = (),
) -> Writing:
    """Gather the chunks of all members on member 0.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group, the root first.
    me : int
        Own place in ``members``.
    pieces : callable
        ``pieces(low, high)`` is where the chunks of members ``low`` to ``high -
        1`` lie here; asked for the own subtree only.  The own chunk is there.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    free : tuple of int
        Further steps to wait for before the others' chunks are written.
    """
    end = me + 1
    have = after
    for child, end_of_child in children(me, len(members)):
        end = end_of_child
        came = _receive(
            out, members[child], pieces(child, end), slot + turn_of(child), after + free
        )
        have = (*have, *came)
        yield
    if me == 0:
        return Stage(have)
    sent = _send(out, members[parent(me)], pieces(me, end), slot + turn_of(me), have)
    return Stage(have, (sent,))


def binomial_scatter(
    out: Schedule,
    members: Members,
    me: int,
    pieces: BlocksOf,
    after: After,
    slot: int,
) -> Writing:
    """Scatter member 0's chunks.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group, the root first.
    me : int
        Own place in ``members``.
    pieces : callable
        ``pieces(low, high)`` is where the chunks of members ``low`` to ``high -
        1`` lie here; asked for the own subtree only.  Member 0 has all of them.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    """
    below = list(children(me, len(members)))
    have = after
    if me:
        end = below[-1][1] if below else me + 1
        came = _receive(out, members[parent(me)], pieces(me, end), slot + turn_of(me), after)
        have = came or after
    sends = []
    for child, end in reversed(below):
        sends.append(_send(out, members[child], pieces(child, end), slot + turn_of(child), have))
        yield
    return Stage(have, tuple(sends))


def _send(out: Schedule, peer: int, blocks: Sequence[Block], slot: int, after: After) -> int:
    """Send blocks as one message; several are packed first."""
    if len(blocks) == 1:
        return out.send(peer, blocks[0], slot, after)
    message = _message(out, blocks)
    packed, start = [], 0
    for block in blocks:
        packed.append(out.copy(block, Block(message.buffer, start, block.count), after))
        start += block.count
    return out.send(peer, message, slot, tuple(packed))


def _receive(out: Schedule, peer: int, blocks: Sequence[Block], slot: int, after: After) -> After:
    """Receive blocks as one message; several are unpacked afterwards."""
    if len(blocks) == 1:
        return passed(out.receive(peer, blocks[0], slot, after), ())
    message = _message(out, blocks)
    came = out.receive(peer, message, slot)
    unpacked, start = [], 0
    for block in blocks:
        piece = Block(message.buffer, start, block.count)
        unpacked.append(out.copy(piece, block, (came, *after)))
        start += block.count
    return tuple(unpacked)


def _message(out: Schedule, blocks: Sequence[Block]) -> Block:
    count = sum(block.count for block in blocks)
    return Block(out.scratch(count), 0, count)
