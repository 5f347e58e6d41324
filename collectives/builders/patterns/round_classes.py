"""The rounds of the logarithmic algorithms, for all members at once.

The stages in ``recursive_doubling``, ``trees``, ``bruck`` and ``prefix_scan``
write the steps of one rank.  Here the same rounds are computed for all
members: the number of items that each member sends, and its partner.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from closeranks.collectives.builders.patterns.recursive_doubling import Fold, fold
from closeranks.collectives.plans.rank_classes import Ints, Round


def _fold_in(folded: Fold, items: Ints) -> Round:
    """Let members that leave send ``items`` to their odd neighbour."""
    me = np.arange(folded.size)
    leaves = (me < 2 * folded.rest) & (me % 2 == 0)
    return Round(np.where(leaves, me + 1, -1), items)


def _fold_out(folded: Fold, items: Ints) -> Round:
    """Let members that stood for two send ``items`` back."""
    me = np.arange(folded.size)
    stands = (me < 2 * folded.rest) & (me % 2 == 1)
    return Round(np.where(stands, me - 1, -1), items)


def _seats(folded: Fold) -> tuple[Ints, Ints]:
    """Place of each member (0 where it leaves) and whether it has one."""
    me = np.arange(folded.size)
    has_place = (me >= 2 * folded.rest) | (me % 2 == 1)
    place = np.where(me < 2 * folded.rest, me // 2, me - folded.rest)
    return np.where(has_place, place, 0), has_place


def _member(folded: Fold, place: Ints) -> Ints:
    return np.where(place < folded.rest, 2 * place + 1, place + folded.rest)


def _edge(folded: Fold, place: Ints) -> Ints:
    return place + np.minimum(place, folded.rest)


def _turns(size: int) -> int:
    """``ceil(log2 size)``."""
    return (size - 1).bit_length()


def doubling_allreduce_rounds(size: int, count: int) -> Iterator[Round]:
    """Yield the rounds of `doubling_allreduce` of ``count`` items."""
    folded = fold(size)
    items = np.full(size, count)
    place, has_place = _seats(folded)
    yield _fold_in(folded, items)
    for turn in range(folded.places.bit_length() - 1):
        yield Round(np.where(has_place, _member(folded, place ^ (1 << turn)), -1), items)
    yield _fold_out(folded, items)


def doubling_allgather_rounds(counts: Ints) -> Iterator[Round]:
    """Yield the rounds of `doubling_allgather`; ``counts`` by member."""
    size = len(counts)
    folded = fold(size)
    edges = np.concatenate([[0], np.cumsum(counts)])
    place, has_place = _seats(folded)
    yield _fold_in(folded, counts)
    for turn in range(folded.places.bit_length() - 1):
        base = place >> turn << turn
        items = edges[_edge(folded, base + (1 << turn))] - edges[_edge(folded, base)]
        yield Round(np.where(has_place, _member(folded, place ^ (1 << turn)), -1), items)
    yield _fold_out(folded, np.full(size, edges[-1]))


def rabenseifner_rounds(size: int, count: int, root: int | None = None) -> Iterator[Round]:
    """Yield the rounds of `rabenseifner_allreduce`; with a root, of the reduce."""
    folded = fold(size)
    whole = np.full(size, count)
    edges = count * np.arange(folded.places + 1) // folded.places
    place, has_place = _seats(folded)
    rounds = folded.places.bit_length() - 1
    yield _fold_in(folded, whole)
    back = []
    for goal, kept, given in _halve(folded, [1 << turn for turn in range(rounds)]):
        yield Round(goal, edges[given[1]] - edges[given[0]])
        back.append((goal, edges[kept[1]] - edges[kept[0]]))
    if root is None:
        yield from (Round(goal, items) for goal, items in reversed(back))
        yield _fold_out(folded, whole)
        return
    collector = root if folded.place(root) >= 0 else root + 1
    away, active = place ^ folded.place(collector), has_place
    for turn in range(rounds - 1, -1, -1):
        leaves = active & ((away >> turn) & 1 == 1)
        yield Round(np.where(leaves, back[turn][0], -1), back[turn][1])
        active = active & ~leaves
    if root != collector:
        yield Round(np.where(np.arange(size) == collector, root, -1), whole)


def halving_rounds(counts: Ints) -> Iterator[Round]:
    """Yield the rounds of `halving_reduce_scatter`; ``counts`` by member."""
    folded = fold(len(counts))
    edges = np.concatenate([[0], np.cumsum(counts)])
    yield _fold_in(folded, np.full(len(counts), edges[-1]))
    distances = [folded.places >> k for k in range(1, folded.places.bit_length())]
    for goal, _, given in _halve(folded, distances):
        yield Round(goal, edges[_edge(folded, given[1])] - edges[_edge(folded, given[0])])
    yield _fold_out(folded, np.roll(counts, 1))


def _halve(
    folded: Fold, distances: list[int]
) -> Iterator[tuple[Ints, tuple[Ints, Ints], tuple[Ints, Ints]]]:
    """Per round: the partner's place in the group, the places kept and given."""
    place, has_place = _seats(folded)
    low = np.zeros(folded.size, dtype=np.int64)
    high = np.full(folded.size, folded.places)
    for distance in distances:
        middle = (low + high) // 2
        upper = place & distance != 0
        given = np.where(upper, low, middle), np.where(upper, middle, high)
        low, high = np.where(upper, middle, low), np.where(upper, high, middle)
        goal = np.where(has_place, _member(folded, place ^ distance), -1)
        yield goal, (low, high), given


def binomial_down_rounds(size: int, items: Ints) -> Iterator[Round]:
    """Yield the rounds from member 0 to all; member ``v`` is sent ``items[v]``."""
    me = np.arange(size)
    lowest = np.where(me > 0, me & -me, 1 << _turns(size))
    for turn in reversed(range(_turns(size))):
        child = me + (1 << turn)
        is_parent = (lowest > 1 << turn) & (child < size)
        goal = np.where(is_parent, child, -1)
        yield Round(goal, np.asarray(items)[goal])


def binomial_up_rounds(size: int, items: Ints) -> Iterator[Round]:
    """Yield the rounds from all to member 0; member ``v`` sends ``items[v]``."""
    me = np.arange(size)
    for turn in range(_turns(size)):
        sends = (me & -me) == 1 << turn
        yield Round(np.where(sends, me & (me - 1), -1), np.asarray(items))


def depth(size: int) -> Ints:
    """Depth of each member in a binomial tree: its number of set bits."""
    me = np.arange(size)
    bits = np.zeros(size, dtype=np.int64)
    for turn in range(_turns(size)):
        bits += (me >> turn) & 1
    return bits


def subtrees(counts: Ints) -> Ints:
    """Items of the subtree of each member of a binomial tree; ``counts`` by member."""
    size = len(counts)
    me = np.arange(size)
    edges = np.concatenate([[0], np.cumsum(counts)])
    end = np.where(me > 0, np.minimum(me + (me & -me), size), size)
    return np.asarray(edges[end] - edges[me], dtype=np.int64)


def shift_rounds(size: int, items: list[int], *, down: bool = False) -> Iterator[Round]:
    """Yield the rounds of sending ``items[k]`` items ``2**k`` places on, or back."""
    me = np.arange(size)
    for turn, count in enumerate(items):
        goal = (me - (1 << turn) if down else me + (1 << turn)) % size
        yield Round(goal, np.full(size, count))


def scan_rounds(size: int, count: int) -> Iterator[Round]:
    """Yield the rounds of `doubling_scan` and `doubling_exscan` of ``count`` items."""
    me = np.arange(size)
    for turn in range(_turns(size)):
        goal = me + (1 << turn)
        yield Round(np.where(goal < size, goal, -1), np.full(size, count))


def bruck_items(size: int, count: int, *, alltoall: bool) -> list[int]:
    """Items that a member sends in each round of Bruck's algorithms."""
    if alltoall:
        me = np.arange(size)
        return [int(((me >> turn) & 1).sum()) * count for turn in range(_turns(size))]
    return [min(1 << turn, size - (1 << turn)) * count for turn in range(_turns(size))]
