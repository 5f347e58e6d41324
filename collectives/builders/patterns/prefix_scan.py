"""Prefix sums, in the order of members.

By doubling: in round ``k`` every member hands the sum of the ``2**k`` operands
that end with its own to the one ``2**k`` places on [1]_.  By a chain:
everybody adds its own to what it is handed.

References
----------
.. [1] W. D. Hillis, G. L. Steele. Data parallel algorithms. CACM 29(12), 1986,
   section "Sum of an array of numbers" (all partial sums).
"""

from __future__ import annotations

from collections.abc import Callable

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import NOTHING, After, Script
from closeranks.collectives.plans.stage import Members, Stage, Writing, bring

Scan = Callable[[Script, Members, int, Block, Block, After, int], Writing]


def doubling_scan(
    out: Script, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce the operands of members ``0`` to ``me`` into ``target``.

    ``ceil(log2 P)`` rounds, at most one message each way.

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
    out: Script, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me - 1`` into ``target``; not on member 0.

    Keeps two sums: with the own operand, to be handed on, and without.

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
    out: Script, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me`` into ``target``, one after another.

    Parameters
    ----------
    out : Script
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
    out: Script, members: Members, me: int, source: Block, target: Block, after: After, slot: int
) -> Writing:
    """Reduce members ``0`` to ``me - 1`` into ``target``; not on member 0.

    Parameters
    ----------
    out : Script
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
    out: Script, members: Members, goal: int, block: Block, slot: int, after: After
) -> int:
    return out.send(members[goal], block, slot, after) if goal < len(members) else NOTHING


class _Rooms:
    """Two rooms in turn for what arrives, none where nothing does."""

    def __init__(self, out: Script, count: int, me: int) -> None:
        self.rooms = [Block(out.scratch(count), 0, count) for _ in range(min(2, me.bit_length()))]
        self.users: list[After] = [() for _ in self.rooms]
        self.at = -1

    def next(self) -> tuple[Block, After]:
        """Return the next room and what it waits for."""
        self.at = (self.at + 1) % len(self.rooms)
        return self.rooms[self.at], self.users[self.at]

    def use(self, steps: After) -> None:
        """Note who uses the room that `next` gave."""
        self.users[self.at] = steps
