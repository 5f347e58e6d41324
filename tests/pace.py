"""How fast this machine runs Python now: bars in seconds are for one that is not slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

#: Items that a generator hands over, and what one takes where the bars were set.
_ITEMS, _ITEM_S = 30_000, 0.45e-6


def slowness() -> float:
    """Tell how many times longer Python takes here than there, at least 1.

    Measured anew at each call, since virtual machines change their speed, on
    what most of the measured code does: calls, tuples, a generator.

    Returns
    -------
    float
        In processor time: a neighbour's load is not ours.
    """
    taken = []
    for _ in range(3):
        started = time.process_time()
        assert sum(1 for _ in _items()) == _ITEMS
        taken.append(time.process_time() - started)
    return max(1.0, min(taken) / _ITEMS / _ITEM_S)


def least_shares(measure: Callable[[], Sequence[float]], tries: int = 4) -> list[float]:
    """Measure until all is quick enough, for the machine may change its speed meanwhile.

    Parameters
    ----------
    measure : callable
        Gives times as shares of what they may be on a machine that is not slow.
    tries : int
        How often at most.

    Returns
    -------
    list of float
        The least of each share, on this machine; below 1 if it is quick enough.
    """
    least: list[float] = []
    for _ in range(tries):
        before = slowness()
        shares = measure()
        slow = max(before, slowness())
        now = [share / slow for share in shares]
        least = [min(pair) for pair in zip(least or now, now, strict=True)]
        if max(least) < 1:
            break
    return least


def _items() -> Iterator[tuple[int, ...]]:
    """Yield tuples by way of a list, as a plan hands over its steps."""
    room: list[tuple[int, ...]] = []
    before: tuple[int, ...] = ()
    for number in range(_ITEMS):
        before = _item(room, number % 97, number, before)
        yield from room
        room = []


def _item(
    room: list[tuple[int, ...]], peer: int, slot: int, after: tuple[int, ...]
) -> tuple[int, ...]:
    if slot in after:
        after = tuple(one for one in after if one != slot)
    room.append((0, peer, slot, len(after), *after))
    return (slot,)
