"""Signals: barriers, which move nothing.

By dissemination: in round ``k`` everybody signals the one ``2**k`` places on,
once it has heard all rounds before; ``ceil(log2 P)`` rounds [1]_.  By a
binomial tree: up to member 0 and down again.

References
----------
.. [1] D. Hensgen, R. Finkel, U. Manber. Two algorithms for barrier
   synchronization. IJPP 17(1), 1988, section 3.
"""

from __future__ import annotations

from closeranks.collectives.builders.patterns.binomial_tree import (
    binomial_bcast,
    children,
    parent,
    turn_of,
)
from closeranks.collectives.plans.block import OUTPUT, Block
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Stage, Writing

_SIGNAL = Block(OUTPUT, 0, 0)


def dissemination(out: Script, members: Members, me: int, after: After, slot: int) -> Writing:
    """Be done once every member is there.

    Parameters
    ----------
    out : Script
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    after : tuple of int
        What "being there" means on this rank.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    """
    size = len(members)
    heard, sends = after, []
    for turn in range((size - 1).bit_length()):
        distance = 1 << turn
        goal, origin = members[(me + distance) % size], members[me - distance]
        sends.append(out.send(goal, _SIGNAL, slot + turn, heard, empty=True))
        heard = (*heard, out.receive(origin, _SIGNAL, slot + turn, empty=True))
        yield
    return Stage(heard, tuple(sends))


def binomial_barrier(out: Script, members: Members, me: int, after: After, slot: int) -> Writing:
    """Be done once every member is there: ``2 (P - 1)`` signals in all.

    Parameters
    ----------
    out : Script
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    after : tuple of int
        What "being there" means on this rank.
    slot : int
        First slot; uses ``2 ceil(log2 P)``.
    """
    turns = (len(members) - 1).bit_length()
    heard = (
        *after,
        *(
            out.receive(members[child], _SIGNAL, slot + turn_of(child), empty=True)
            for child, _ in children(me, len(members))
        ),
    )
    if me:
        heard = (out.send(members[parent(me)], _SIGNAL, slot + turn_of(me), heard, empty=True),)
    return (
        yield from binomial_bcast(
            out, members, me, _SIGNAL, _SIGNAL, heard, slot + turns, empty=True
        )
    )
