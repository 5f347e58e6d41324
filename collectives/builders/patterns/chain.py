"""Chains: everybody hands on to the next, in segments, all links at once.

With ``m`` segments the time is ``(P - 2 + m)`` transfers of one segment: for
large data the bytes of one message, whatever the number of ranks.
"""

from __future__ import annotations

from closeranks.collectives.plans.block import Block, part
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import Members, Stage, Window, Writing, bring

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
    out: Script,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    number: int,
    after: After,
    slot: int,
) -> Writing:
    """Hand ``source`` of member 0 down the chain to everybody's ``target``.

    Parameters
    ----------
    out : Script
        The pen.
    members : sequence of int
        Ranks of the chain, the root first.
    me : int
        Own place in ``members``.
    source : Block
        What member 0 sends, contiguous; others may give anything.
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
            came = out.receive(members[me - 1], piece, slot + index % _SLOTS, coming.gate())
            coming.admit(came)
            have = (came,)
        if me + 1 < len(members):
            ready = (*have, *going.gate())
            going.admit(out.send(members[me + 1], piece, slot + index % _SLOTS, ready))
        yield
    done = coming.tail() if me else bring(out, source, target, after)
    return Stage(done, going.tail())
