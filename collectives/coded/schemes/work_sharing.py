"""The next micro-batch of a worker, in a group whose workers help each other.

Each worker of a group has a share of equal size.  It computes its own share
from the front.  A worker that has nothing left of its own helps: it takes
micro-batches of the others from the back.  Two sets of bits for each share,
one bit a micro-batch, are all that the workers tell each other: ``done`` and
``taken``.

    share of worker 1:   0 1 2 3 4 5 6 7
    worker 1, slow:      d d c                 d done, c under way
    worker 0 helps:                t d         t taken by a helper
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Bits of a word that tell of micro-batches: no share has more.
MOST_MICRO: Final = 62


def next_micro_batch(
    member: int, done: Sequence[int], taken: Sequence[int], micro: int, *, helps: bool
) -> tuple[int, int] | None:
    """Choose what a worker computes next.  Local and pure.

    A worker does its own share from the front.  Then, if it ``helps``, it takes
    the last micro-batch of the share that has most left which nobody computes.
    Where nothing is left that nobody computes, it computes one a second time:
    whoever ends it first counts.

    Parameters
    ----------
    member : int
        The worker's number in its group.
    done, taken : sequence of int
        Member -> bits of the micro-batches of its share that are done, and of
        those that a helper has taken.
    micro : int
        Micro-batches of a share, at most `MOST_MICRO`.
    helps : bool
        Whether it may compute those of others now.

    Returns
    -------
    (int, int) or None
        A member and the number of a micro-batch of its share; None if nothing is
        left to do, or not yet.
    """
    every = (1 << micro) - 1
    mine = every & ~done[member]
    free = mine & ~taken[member]
    if free:
        return member, _lowest(free)
    if not helps:
        return (member, _lowest(mine)) if mine else None
    best, most = None, 0
    for step in range(1, len(done)):
        other = (member + step) % len(done)
        left = every & ~done[other]
        # The lowest one that no helper has taken is in the hands of its owner.
        left_free = _without_lowest(left & ~taken[other])
        if left_free.bit_count() > most:
            best, most = (other, left_free.bit_length() - 1), left_free.bit_count()
    if best is not None:
        return best
    if mine:
        return member, _lowest(mine)
    for step in range(1, len(done)):
        other = (member + step) % len(done)
        left = every & ~done[other]
        if left:
            return other, (left & ~taken[other] or left).bit_length() - 1
    return None


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _without_lowest(bits: int) -> int:
    return bits & (bits - 1)
