"""Direct exchange: every member sends to every owner, no message is forwarded.

All at once: one step in time where the network takes many messages at once, as
inside a node.  Sums are taken in the order of members, so they are the same
whichever member owns them.

Pairwise: in round ``t`` every member sends to the one ``t`` places on.  These
are ``P - 1`` messages with exactly the bytes that have to move: for all-to-all
of large blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Sequence

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
from closeranks.collectives.plans.schedule import NOTHING, After, Schedule

#: Messages in flight in each direction.
_WIDTH = 32


def direct_reduce_scatter(
    out: Schedule,
    members: Members,
    me: int,
    owners: Sequence[int],
    source: BlockOf,
    target: Block | None,
    after: After,
    slot: int,
) -> Writing:
    """Send every owner its operand; owners sum in the order of members.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    owners : sequence of int
        Places in ``members`` of those that own a chunk, ascending.
    source : callable
        ``source(k)`` is this rank's operand of the chunk of ``owners[k]``.
    target : Block or None
        Where the own chunk's result goes, None without one; may be the memory
        of this rank's own operand of it, but of no other's.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; a message ``d`` places on has slot ``slot + d``.
    """
    going = Window(_WIDTH, after)
    start = bisect_right(owners, me)
    for turn in range(len(owners)):
        which = (start + turn) % len(owners)
        if owners[which] != me:
            at = slot + (owners[which] - me) % len(members)
            peer = members[owners[which]]
            going.admit(out.send(peer, source(which), at, going.credit()))
            yield
    if target is None:
        return Stage(after, going.tail())
    mine = source(bisect_left(owners, me))
    summed = yield from _sum(out, members, me, mine, target, after, after, slot)
    return Stage(summed, going.tail())


def direct_allgather(
    out: Schedule,
    members: Members,
    me: int,
    owners: Sequence[int],
    chunks: BlockOf,
    after: After,
    slot: int,
    free: After = (),
) -> Writing:
    """Send the own chunk to every other member.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    owners : sequence of int
        Places in ``members`` of those that own a chunk, ascending.
    chunks : callable
        ``chunks(k)`` is the place of the chunk of ``owners[k]``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; a message ``d`` places on has slot ``slot + d``.
    free : tuple of int
        Further steps to wait for before the others' chunks are written.
    """
    size = len(members)
    coming, going = Window(_WIDTH, after + free), Window(_WIDTH, after)
    start = bisect_right(owners, me)
    own = bisect_left(owners, me)
    has_one = own < start
    for turn in range(max(size - 1, len(owners))):
        if has_one and turn < size - 1:
            peer = members[(me + 1 + turn) % size]
            going.admit(out.send(peer, chunks(own), slot + 1 + turn, going.credit()))
        which = (start - 1 - turn) % len(owners)
        if turn < len(owners) and owners[which] != me:
            peer, at = members[owners[which]], slot + (me - owners[which]) % size
            coming.admit(out.receive(peer, chunks(which), at, coming.credit()))
        yield
    return Stage(coming.tail(), going.tail())


def two_shot_allreduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Reduce-scatter and allgather, both direct: two steps, ``2 (P - 1)`` messages.

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
        First slot; uses P + 1.
    """
    everybody = range(len(members))
    operands, results = cut(source, len(members)), cut(target, len(members))
    summed = yield from direct_reduce_scatter(
        out, members, me, everybody, operands, results(me), after, slot
    )
    return (
        yield from direct_allgather(
            out, members, me, everybody, results, summed.done, slot + 1, summed.busy
        )
    )


def one_shot_allreduce(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Send all data to all members; each sums in the order of members.

    One step, ``P - 1`` messages of the whole vector.

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
        First slot; a message ``d`` places on has slot ``slot + d``.
    """
    going = Window(_WIDTH, after)
    for turn in range(1, len(members)):
        peer = members[(me + turn) % len(members)]
        going.admit(out.send(peer, source, slot + turn, going.credit()))
        yield
    free = (*after, *going.tail())
    summed = yield from _sum(out, members, me, source, target, after, free, slot)
    return Stage(summed, going.tail())


def _sum(
    out: Schedule,
    members: Members,
    me: int,
    mine: Block,
    target: Block,
    after: After,
    free: After,
    slot: int,
) -> Generator[None, None, After]:
    """Sum one operand of each member, from the last to the first, into ``target``.

    The first to arrive keeps its room and takes the others' sum; ``free`` is
    the steps that ``target`` waits for.
    """
    last, count = len(members) - 1, mine.count
    if count == 0:
        return after
    rooms = _Rooms(out, count, last, keeps=me != last)
    here, ready = target, after
    if me == last:
        ready = bring(out, mine, target, (*after, *free))
    for j in range(last - (me == last), -1, -1):
        if j == me:
            ready = (out.reduce(mine, here, (*ready, *after)),)
            continue
        room, room_free = rooms.next()
        came = out.receive(members[j], room, slot + (me - j) % len(members), room_free)
        if j == last:
            here, ready = room, (came,)
        else:
            ready = (out.reduce(room, here, (came, *ready)),)
            rooms.use(ready)
        yield
    return bring(out, here, target, ready if here == target else (*ready, *free))


class _Rooms:
    """Scratch for arriving operands, at most `_WIDTH` of them at a time."""

    def __init__(self, out: Schedule, count: int, arrivals: int, *, keeps: bool) -> None:
        rooms = min(arrivals, _WIDTH)
        self.count, self.keeps = count, keeps
        self.work = out.scratch(count * rooms) if rooms else -1
        self.users: list[After] = [()] * rooms
        self.at = -1

    def next(self) -> tuple[Block, After]:
        """Return the next room and its steps to await; a kept first never recurs."""
        self.at += 1
        if self.at == len(self.users):
            self.at = int(self.keeps)
        return Block(self.work, self.at * self.count, self.count), self.users[self.at]

    def use(self, steps: After) -> None:
        """Note the users of the room that `next` gave."""
        self.users[self.at] = steps


#: Rounds in flight of a pairwise exchange, and of one that posts all it may.
PAIRED, POSTED = 1, 32


def pairwise_alltoall(
    out: Schedule,
    members: Members,
    me: int,
    source: BlockOf,
    target: BlockOf,
    after: After,
    slot: int,
    *,
    width: int = PAIRED,
) -> Writing:
    """Send ``source(j)`` to member ``j``, receive its block in ``target(j)``.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : callable
        Blocks by member; they share no memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses P.
    width : int
        Rounds in flight.
    """
    size = len(members)
    flight = _Flight(width, after)
    own = bring(out, source(me), target(me), after)
    for turn in range(1, size):
        origin, goal, credit = (me - turn) % size, (me + turn) % size, flight.credit()
        came = out.receive(members[origin], target(origin), slot + turn, credit)
        flight.admit(came, out.send(members[goal], source(goal), slot + turn, credit))
        yield
    return Stage((*own, *flight.tail()))


def pairwise_reduce_scatter(
    out: Schedule,
    members: Members,
    me: int,
    source: BlockOf,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Send every member its operand, sum as they arrive, one after another.

    Needs operands that commute; for others see
    `direct_reduce_scatter`.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source : callable
        ``source(j)`` is this rank's operand of member ``j``'s chunk.
    target : Block
        Where the own chunk's result goes; may be the memory of ``source(me)``.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses P.
    """
    size, count = len(members), target.count
    room = Block(out.scratch(count), 0, count) if size > 1 else target
    flight = _Flight(PAIRED, after)
    summed = bring(out, source(me), target, after)
    for turn in range(1, size):
        goal, credit = (me + turn) % size, flight.credit()
        sent = out.send(members[goal], source(goal), slot + turn, credit)
        came = out.receive(members[me - turn], room, slot + turn, credit)
        summed = passed(out.reduce(room, target, (came, *summed)), summed)
        flight.admit(summed[-1] if came != NOTHING else NOTHING, sent)
        yield
    return Stage(summed, flight.tail())


class _Flight:
    """Lets a round start when the one ``width`` rounds before it is over."""

    def __init__(self, width: int, after: After) -> None:
        self._width, self._after = width, after
        self._recent: deque[After] = deque(maxlen=width)

    def credit(self) -> After:
        """Return the steps that the next round waits for."""
        recent = self._recent
        return recent[0] if len(recent) == self._width else self._after

    def admit(self, came: int, sent: int) -> None:
        """Note the two ends of a round; a round without any is none."""
        if came != NOTHING:
            self._recent.append((came, sent) if sent != NOTHING else (came,))
        elif sent != NOTHING:
            self._recent.append((sent,))

    def tail(self) -> After:
        """Return the last steps of the last rounds."""
        return tuple(step for steps in self._recent for step in steps) or self._after
