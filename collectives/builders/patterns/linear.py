"""Linear algorithms: the root talks to everybody, one message each.

The least bytes, and the only way where nobody but the root knows the sizes.
"""

from __future__ import annotations

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import After, Script
from closeranks.collectives.plans.stage import (
    BlockOf,
    Members,
    Stage,
    Window,
    Writing,
    bring,
    passed,
)

#: Messages of the root in flight.
_WIDTH = 32


def linear_gather(
    out: Script,
    members: Members,
    me: int,
    root: int,
    source: Block,
    target: BlockOf,
    after: After,
    slot: int,
) -> Writing:
    """Gather everybody's ``source`` on the root.

    Parameters
    ----------
    out : Script
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
    coming = Window(_WIDTH, after)
    for turn in range(1, len(members)):
        origin = (root + turn) % len(members)
        coming.admit(out.receive(members[origin], target(origin), slot, coming.gate()))
        yield
    return Stage((*own, *coming.tail()))


def linear_scatter(
    out: Script,
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
    out : Script
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
    going = Window(_WIDTH, after)
    for turn in range(1, len(members)):
        goal = (root + turn) % len(members)
        going.admit(out.send(members[goal], source(goal), slot, going.gate()))
        yield
    return Stage(bring(out, source(me), target, after), going.tail())
