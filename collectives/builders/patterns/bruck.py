"""Bruck's algorithms and barriers: ``ceil(log2 P)`` rounds for any number P.

Barriers move no data.  By dissemination: in round ``k`` every member signals
the member ``2**k`` places on, once it has heard all rounds before [1]_.  By a
binomial tree: up to member 0 and down again.

Bruck's all-gather and all-to-all send ``ceil(log2 P)`` messages [2]_.  They
are for small blocks: in the all-to-all a block travels once for every bit of
its distance, so about ``S / 2`` bytes leave in every round.

References
----------
.. [1] D. Hensgen, R. Finkel, U. Manber. Two algorithms for barrier
   synchronization. IJPP 17(1), 1988, section 3.
.. [2] J. Bruck, C. Ho, S. Kipnis, E. Upfal, D. Weathersby. Efficient
   algorithms for all-to-all communications in multiport message-passing
   systems. IEEE TPDS 8(11), 1997, sections 3 and 4.
.. [3] J. L. Traff, A. Rougier, S. Hunold. Implementing a classic: zero-copy
   all-to-all communication with MPI datatypes. ICS 2014, section 3: the blocks
   are laid out so that they end where they belong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.trees import binomial_bcast, children, parent, turn_of
from closeranks.collectives.plans.apply_kernels import kernel
from closeranks.collectives.plans.block import OUTPUT, Block
from closeranks.collectives.plans.plan_type import Members, Stage, Writing, passed
from closeranks.collectives.plans.schedule import After, Schedule

_SIGNAL = Block(OUTPUT, 0, 0)


def dissemination(out: Schedule, members: Members, me: int, after: After, slot: int) -> Writing:
    """Be done once every member is there.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    after : tuple of int
        The steps that count as "being there" on this rank.
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


def binomial_barrier(out: Schedule, members: Members, me: int, after: After, slot: int) -> Writing:
    """Be done once every member is there: ``2 (P - 1)`` signals in all.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    after : tuple of int
        The steps that count as "being there" on this rank.
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


_Indices = NDArray[np.int64]


@kernel("take_blocks")
def take_blocks(which: _Indices, source: NDArray[Any], message: NDArray[Any]) -> None:
    """Fill a message with some of the equal blocks of an array.

    Parameters
    ----------
    which : ndarray, shape (k,), dtype int64
        Numbers of the blocks, in the order of the message.
    source : ndarray
        The array, a multiple of the block in length.
    message : ndarray
        ``k`` blocks.
    """
    shape = (-1, len(message) // len(which))
    message.reshape(shape)[:] = source.reshape(shape)[which]


@kernel("put_blocks")
def put_blocks(which: _Indices, message: NDArray[Any], target: NDArray[Any]) -> None:
    """Put the blocks of a message where they belong.

    Parameters
    ----------
    which : ndarray, shape (k,), dtype int64
        Numbers of the blocks, in the order of the message.
    message : ndarray
        ``k`` blocks.
    target : ndarray
        The array, a multiple of the block in length.
    """
    shape = (-1, len(message) // len(which))
    target.reshape(shape)[which] = message.reshape(shape)


def bruck_alltoall(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Send block ``j`` of ``source`` to member ``j``.

    A block for the member ``d`` places on is kept at place ``me - d``; round ``k``
    sends the blocks of which bit ``k`` of ``d`` is set ``2**k`` places on.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source, target : Block
        One block a member, contiguous; they share no memory.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    """
    size = len(members)
    count = source.count // size
    if count == 0:
        return Stage(after)
    distance = np.arange(size)
    turned = Block(out.constant((2 * me - distance) % size), 0, size)
    ready = (out.apply("take_blocks", (turned, source), (target,), after=after),)
    for turn in range((size - 1).bit_length()):
        moving = distance[(distance >> turn) & 1 == 1]
        which = Block(out.constant((me - moving) % size), 0, len(moving))
        items = len(moving) * count
        leaving, coming = Block(out.scratch(items), 0, items), Block(out.scratch(items), 0, items)
        packed = out.apply("take_blocks", (which, target), (leaving,), after=ready)
        out.send(members[(me + (1 << turn)) % size], leaving, slot + turn, (packed,))
        came = out.receive(members[me - (1 << turn)], coming, slot + turn)
        ready = (out.apply("put_blocks", (which, coming), (target,), after=(came, packed)),)
        yield
    return Stage(ready)


def bruck_allgather(
    out: Schedule,
    members: Members,
    me: int,
    source: Block,
    target: Block,
    after: After,
    slot: int,
) -> Writing:
    """Gather the ``source`` of all members on all, blocks of equal size.

    Known blocks are kept from the own one on, and turned round at the end.

    Parameters
    ----------
    out : Schedule
        The pen.
    members : sequence of int
        Ranks of the group.
    me : int
        Own place in ``members``.
    source : Block
        Own block.
    target : Block
        One block a member, contiguous; ``source`` may be the own one.
    after : tuple of int
        Steps to wait for.
    slot : int
        First slot; uses ``ceil(log2 P)``.
    """
    size, count = len(members), source.count
    if count == 0:
        return Stage(after)
    work = out.scratch(size * count) if me else target.buffer
    base = 0 if me else target.start
    have = passed(out.copy(source, Block(work, base, count), after), after)
    free = () if me else after
    known, turn, busy = 1, 0, []
    while known < size:
        more = min(known, size - known)
        leaving = Block(work, base, more * count)
        coming = Block(work, base + known * count, more * count)
        busy.append(out.send(members[(me - known) % size], leaving, slot + turn, have))
        came = out.receive(members[(me + known) % size], coming, slot + turn, free)
        have = (*have, came)
        known, turn = known + more, turn + 1
        yield
    if me == 0:
        return Stage(have, tuple(busy))
    return Stage(_turn(out, work, me * count, target, have))


def _turn(out: Schedule, work: int, shift: int, target: Block, after: After) -> After:
    """Copy all of ``work`` to the target, turned by ``shift`` items."""
    head = target.count - shift
    return (
        out.copy(Block(work, 0, head), Block(target.buffer, target.start + shift, head), after),
        out.copy(Block(work, head, shift), Block(target.buffer, target.start, shift), after),
    )
