"""Pairwise exchange: in round ``t`` everybody sends to the one ``t`` places on.

``P - 1`` messages of exactly what has to move: for all-to-all of large blocks.
"""

from __future__ import annotations

from collections import deque

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import NOTHING, After, Script
from closeranks.collectives.plans.stage import BlockOf, Members, Stage, Writing, bring, passed

#: Rounds in flight of a pairwise exchange, and of one that posts all it may.
PAIRED, POSTED = 1, 32


def pairwise_alltoall(
    out: Script,
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
    out : Script
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
        origin, goal, gate = (me - turn) % size, (me + turn) % size, flight.gate()
        came = out.receive(members[origin], target(origin), slot + turn, gate)
        flight.admit(came, out.send(members[goal], source(goal), slot + turn, gate))
        yield
    return Stage((*own, *flight.tail()))


def pairwise_reduce_scatter(
    out: Script,
    members: Members,
    me: int,
    source: BlockOf,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Send every member its operand, sum as they arrive, one after another.

    Needs operands that commute; for those that do not, see
    `direct_reduce_scatter`.

    Parameters
    ----------
    out : Script
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
        goal, gate = (me + turn) % size, flight.gate()
        sent = out.send(members[goal], source(goal), slot + turn, gate)
        came = out.receive(members[me - turn], room, slot + turn, gate)
        summed = passed(out.reduce(room, target, (came, *summed)), summed)
        flight.admit(summed[-1] if came != NOTHING else NOTHING, sent)
        yield
    return Stage(summed, flight.tail())


class _Flight:
    """Lets a round start when the one ``width`` rounds before it is over."""

    def __init__(self, width: int, after: After) -> None:
        self._width, self._after = width, after
        self._recent: deque[After] = deque(maxlen=width)

    def gate(self) -> After:
        """Return what the next round waits for."""
        recent = self._recent
        return recent[0] if len(recent) == self._width else self._after

    def admit(self, came: int, sent: int) -> None:
        """Note the two ends of a round; a round without any is none."""
        if came != NOTHING:
            self._recent.append((came, sent) if sent != NOTHING else (came,))
        elif sent != NOTHING:
            self._recent.append((sent,))

    def tail(self) -> After:
        """Return what the last rounds end with."""
        return tuple(step for steps in self._recent for step in steps) or self._after
