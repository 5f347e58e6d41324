"""Who probes whom and when: pairs of groups that do not share one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.level_table import Grouping, child_groups


def tournament(number: int) -> list[list[tuple[int, int]]]:
    """Pair everybody with everybody once.

    Parameters
    ----------
    number : int
        Number of players, at least 1.

    Returns
    -------
    list of list of (int, int)
        Rounds of disjoint pairs, the smaller number first: ``number - 1``
        rounds, ``number`` if that is odd.

    Notes
    -----
    The circle method: one player stays, the others move on by one.
    """
    players = list(range(number + number % 2))
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append(sorted((min(p), max(p)) for p in pairs if max(p) < number))
        players.insert(1, players.pop())
    return rounds


def opponents(grouping: Grouping, level: str) -> list[npt.NDArray[np.int64]]:
    """Return for each round the opponent of every group of a level.

    Parameters
    ----------
    grouping : Grouping
        A topology.
    level : str
        One of its levels.

    Returns
    -------
    list of ndarray, shape (groups,), dtype int64
        Group numbers, -1 for a group that rests; every pair inside a parent
        group meets once.  Two pairs of a round share no group.
    """
    families = child_groups(grouping, level)
    plans = {size: tournament(size) for size in {len(family) for family in families}}
    rounds = []
    for r in range(max(len(plan) for plan in plans.values())):
        row = np.full(grouping.count(level), -1, dtype=np.int64)
        for family in families:
            plan = plans[len(family)]
            for a, b in plan[r] if r < len(plan) else ():
                row[family[a]], row[family[b]] = family[b], family[a]
        rounds.append(row)
    return rounds


def first_opponents(grouping: Grouping, level: str) -> npt.NDArray[np.int64]:
    """Return an opponent for every group of a level but an odd one.

    Parameters
    ----------
    grouping : Grouping
        A topology of any size: the work is linear in its groups.
    level : str
        One of its levels.

    Returns
    -------
    ndarray, shape (groups,), dtype int64
        Group numbers, -1 for a group that rests.
    """
    row = np.full(grouping.count(level), -1, dtype=np.int64)
    for family in child_groups(grouping, level):
        for a, b in zip(family[0::2], family[1::2], strict=False):
            row[a], row[b] = b, a
    return row
