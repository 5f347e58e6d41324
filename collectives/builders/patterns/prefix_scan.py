"""Prefix sums, in the order of members.

By doubling: in round ``k`` every member sends the sum of the ``2**k`` operands
that end with its own to the member ``2**k`` places on [1]_.  By a chain: every
member adds its own operand to the sum that it receives.  `RunningSum` is a sum
that grows on one rank as partners' sums arrive, with few copies.

References
----------
.. [1] W. D. Hillis, G. L. Steele. Data parallel algorithms. CACM 29(12), 1986,
   section "Sum of an array of numbers" (all partial sums).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.plan_type import Members, Stage, Writing, bring
from closeranks.collectives.plans.schedule import NOTHING, After, Schedule


class ScanRound(NamedTuple):
    """One round of a running sum.

    Attributes
    ----------
    peer : int
        Rank that sends its sum.
    lower : bool
        Whether it is the left operand.
    sends : bool
        Whether it gets our sum too.
    slot : int
        Slot of the messages.
    """

    peer: int
    lower: bool
    sends: bool
    slot: int


class RunningSum:
    """The running sum of one rank, which moves between buffers.

    ``source op block`` overwrites its right operand: with a lower partner the
    sum stays where it is, with a higher one it moves to where the partner's
    sum arrived.  The last move goes to the target.

    Parameters
    ----------
    out : Schedule
        The pen.
    source : Block
        The own operand, not empty.
    target : Block or None
        Where the sum shall end, None for anywhere; may be the memory of
        ``source``.
    after : tuple of int
        Steps to wait for.
    exchanges : list of ScanRound
        The arguments of later `take` calls, in order.
    """

    def __init__(
        self,
        out: Schedule,
        source: Block,
        target: Block | None,
        after: After,
        exchanges: list[ScanRound],
    ) -> None:
        self.out, self.source, self.target = out, source, target
        self.here, self.ready = source, after
        self._moves = sum(not exchange.lower for exchange in exchanges)
        self._grows_in_target = target is not None and (self._moves != 1 or source == target)
        self._fresh = True  # the sum is still the caller's operand
        self._rooms: list[Block] = []
        #: Steps that must be done before a block is written, by the buffer that it lies in.
        self._free: dict[int, After] = {_buffer(target): after}

    def take(self, exchange: ScanRound) -> None:
        """Write one exchange."""
        out, here, ready = self.out, self.here, self.ready
        sent = out.send(exchange.peer, here, exchange.slot, ready) if exchange.sends else NOTHING
        if exchange.lower:
            self._stay(exchange, sent)
            return
        self._moves -= 1
        room = self._room(last=self._moves == 0)
        came = out.receive(exchange.peer, room, exchange.slot, self._free[room.buffer])
        added = out.reduce(here, room, (came, *ready))
        self._leave((sent, added))
        self.here, self.ready = room, (added,)

    def finish(self) -> After:
        """Bring the sum to the target; return steps to wait for."""
        if self.target is None or self.here == self.target:
            return self.ready
        after = (*self.ready, *self._free[_buffer(self.target)])
        return bring(self.out, self.here, self.target, after)

    def _stay(self, exchange: ScanRound, sent: int) -> None:
        ready = self.ready
        if self._fresh:
            home = self.target if self._grows_in_target else self._room(last=False)
            assert home is not None
            ready = bring(self.out, self.source, home, ready)
            self._leave((sent, *ready))
            self.here = home
        room = self._room(last=False)
        came = self.out.receive(exchange.peer, room, exchange.slot, self._free[room.buffer])
        added = self.out.reduce(room, self.here, (came, *ready, sent))
        self._free[room.buffer] = self.ready = (added,)

    def _leave(self, users: After) -> None:
        """Note the readers of the block that the sum leaves."""
        if self._fresh:
            self._free[_buffer(self.target)] += users
            self._fresh = False
        else:
            self._free[self.here.buffer] = users

    def _room(self, *, last: bool) -> Block:
        """Return a block for an arriving sum."""
        if last and not self._fresh and self.target is not None and self.here != self.target:
            return self.target
        for room in self._rooms:
            if room != self.here:
                return room
        count = self.source.count
        room = Block(self.out.scratch(count), 0, count)
        self._rooms.append(room)
        self._free[room.buffer] = ()
        return room


def _buffer(block: Block | None) -> int:
    """Name the buffer of a block, -1 where there is none; each room is one."""
    return -1 if block is None else block.buffer


Scan = Callable[[Schedule, Members, int, Block, Block, After, int], Writing]


def doubling_scan(
    out: Schedule, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce the operands of members ``0`` to ``me`` into ``target``.

    ``ceil(log2 P)`` rounds, at most one message each way.

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
        First slot; uses ``ceil(log2 P)``.
    """
    if source.count == 0:
        return Stage(after)
    rooms = _Rooms(out, source.count, me)
    here, sendable = source, after
    summed = bring(out, source, target, after)
    users: After = ()
    for turn in range((len(members) - 1).bit_length()):
        sent = _hand_on(out, members, me + (1 << turn), here, slot + turn, sendable)
        users = (*users, sent)
        if me >> turn:
            room, free = rooms.next()
            came = out.receive(members[me - (1 << turn)], room, slot + turn, free)
            summed = (out.reduce(room, target, (came, *summed, *users)),)
            rooms.use(summed)
            here, sendable, users = target, summed, ()
        yield
    return Stage(summed, users)


def doubling_exscan(
    out: Schedule, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me - 1`` into ``target``; not on member 0.

    Keeps two sums: with the own operand, to be handed on, and without.

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
        First slot; uses ``ceil(log2 P)``.
    """
    size, count = len(members), source.count
    if count == 0 or size == 1:
        return Stage(after)
    rooms = _Rooms(out, count, me)
    here = Block(out.scratch(count), 0, count) if 0 < me < size - 1 else source
    handed = bring(out, source, here, after)
    result: After = (*after, *handed)
    users: After = ()
    for turn in range((size - 1).bit_length()):
        distance = 1 << turn
        users = (*users, _hand_on(out, members, me + distance, here, slot + turn, handed))
        if me >> turn:
            room, free = rooms.next()
            came = out.receive(members[me - distance], room, slot + turn, free)
            move = out.reduce if turn else out.copy
            result = (move(room, target, (came, *result)),)
            added = NOTHING
            if me + 2 * distance < size:
                added = out.reduce(room, here, (came, *handed, *users))
                handed, users = (added,), ()
            rooms.use((*result, added))
        yield
    return Stage(result, users)


def chain_scan(
    out: Schedule, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me`` into ``target``, one after another.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the chain.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        The only slot.
    """
    here, summed = source, after
    own = bring(out, source, target, after)
    if me and source.count:
        room = Block(out.scratch(source.count), 0, source.count)
        came = out.receive(members[me - 1], room, slot)
        here, summed = target, (out.reduce(room, target, (came, *own)),)
    sent = _hand_on(out, members, me + 1, here, slot, summed)
    yield
    return Stage(summed if me else own, (sent,))


def chain_exscan(
    out: Schedule, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me - 1`` into ``target``; not on member 0.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the chain.
    me : int
        Own place in ``members``.
    source, target : Block
        Operand and result, contiguous; may be the same memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        The only slot.
    """
    count, size = source.count, len(members)
    if count == 0 or size == 1:
        return Stage(after)
    if me == 0:
        return Stage(after, (out.send(members[1], source, slot, after),))
    if me == size - 1:
        return Stage((out.receive(members[me - 1], target, slot, after),))
    work = Block(out.scratch(count), 0, count)
    own = out.copy(source, work, after)
    came = out.receive(members[me - 1], target, slot, (own,))
    summed = out.reduce(target, work, (came,))
    yield
    return Stage((came,), (summed, out.send(members[me + 1], work, slot, (summed,))))


def _hand_on(
    out: Schedule, members: Members, goal: int, block: Block, slot: int, after: After
) -> int:
    return out.send(members[goal], block, slot, after) if goal < len(members) else NOTHING


class _Rooms:
    """Two rooms in turn for arriving sums, none if no sum arrives."""

    def __init__(self, out: Schedule, count: int, me: int) -> None:
        self.rooms = [Block(out.scratch(count), 0, count) for _ in range(min(2, me.bit_length()))]
        self.users: list[After] = [() for _ in self.rooms]
        self.at = -1

    def next(self) -> tuple[Block, After]:
        """Return the next room and the steps that it waits for."""
        self.at = (self.at + 1) % len(self.rooms)
        return self.rooms[self.at], self.users[self.at]

    def use(self, steps: After) -> None:
        """Note the users of the room that `next` gave."""
        self.users[self.at] = steps
