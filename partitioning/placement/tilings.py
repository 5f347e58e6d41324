"""Orders that give each group of each level a block of the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.machine_tiers import MachineTier

#: Ways to leave arities over, of which no more are followed.
_MOST_STATES: Final = 4096

#: For each axis its factor at each tier.
Rows = tuple[tuple[int, ...], ...]


class TiledCost(NamedTuple):
    """What axes with given rows cost.

    Attributes
    ----------
    per_tier : tuple of float
        Seconds of the busiest group of each tier.
    latency_s : float
        Largest sum of latencies of one rank.
    seconds : float
        Sum of the axes' times, each its slowest tier plus its latency.
    """

    per_tier: tuple[float, ...]
    latency_s: float
    seconds: float

    def plus(self, other: TiledCost) -> TiledCost:
        """Add the cost of more axes."""
        tiers = tuple(map(sum, zip(self.per_tier, other.per_tier, strict=True)))
        return TiledCost(tiers, self.latency_s + other.latency_s, self.seconds + other.seconds)

    def key(self, together: bool) -> tuple[float, float]:
        """Give what to minimise: the time, then the load of all tiers.

        The axes of a mesh take their time one after the other.  All messages of
        a graph travel together, and the slowest tier counts once.
        """
        at_once = max(self.per_tier, default=0.0) + self.latency_s
        return (at_once if together else self.seconds), sum(self.per_tier)


#: Arities that are left at each tier -> the cheapest ways to get there.
Ways = dict[tuple[int, ...], list[tuple[TiledCost, Rows]]]


def best_tilings(
    shape: Sequence[int],
    sending: Mapping[int, Volume],
    tiers: Sequence[MachineTier],
    kept: int,
    *,
    together: bool = False,
) -> list[tuple[TiledCost, Rows]]:
    """Give the cheapest ways to tile a mesh over the tiers of a machine.

    Each tier takes a factor of each axis, outer tiers the more significant ones;
    the factors at a tier multiply to its arity.  The cost of an axis depends on
    its own row of factors alone, so the arities that are left after some axes
    are all that the next ones need to know: a dynamic program over the axes is
    exact among tilings, unless ``together``, for which it is a beam search.

    Parameters
    ----------
    shape : sequence of int
        Sizes of the axes; their product is that of the arities.
    sending : mapping of int to Volume
        Index of each axis that sends -> its volume.
    tiers : sequence of MachineTier
        Outermost first.
    kept : int
        At most so many.
    together : bool
        Whether the axes send at the same time.

    Returns
    -------
    list of (TiledCost, rows)
        Cheapest first.
    """
    nothing = TiledCost((0.0,) * len(tiers), 0.0, 0.0)
    ways: Ways = {tuple(tier.arity for tier in tiers): [(nothing, ())]}
    for axis, size in enumerate(shape):
        ways = _with_axis(ways, size, sending.get(axis), tiers, kept, together)
    (found,) = ways.values()
    return found


def _with_axis(
    ways: Ways,
    size: int,
    volume: Volume | None,
    tiers: Sequence[MachineTier],
    kept: int,
    together: bool,
) -> Ways:
    """Give an axis its factors, in each of the ways so far."""
    costs: dict[tuple[int, ...], TiledCost] = {}
    longer: Ways = {}
    for left, found in ways.items():
        for row in factor_rows(size, left):
            if row not in costs:
                costs[row] = row_cost(volume, size, row, tiers)
            rest = tuple(a // b for a, b in zip(left, row, strict=True))
            longer.setdefault(rest, []).extend(
                (cost.plus(costs[row]), (*rows, row)) for cost, rows in found
            )
    for rest, some in longer.items():
        some.sort(key=lambda way: way[0].key(together))
        longer[rest] = some[:kept]
    if len(longer) > _MOST_STATES:
        cheap = sorted(longer, key=lambda rest: longer[rest][0][0].key(together))
        longer = {rest: longer[rest] for rest in cheap[:_MOST_STATES]}
    return longer


def factor_rows(size: int, arities: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Give all ways to write a size as a product, each factor dividing its arity.

    Parameters
    ----------
    size : int
        Of an axis.
    arities : sequence of int
        Of the tiers, or what is left of them.

    Yields
    ------
    tuple of int
        A factor for each tier.
    """
    if not arities:
        if size == 1:
            yield ()
        return
    most = gcd(size, arities[0])
    for factor in range(1, most + 1):
        if most % factor == 0:
            for inner in factor_rows(size // factor, arities[1:]):
                yield (factor, *inner)


def row_cost(
    volume: Volume | None, size: int, row: Sequence[int], tiers: Sequence[MachineTier]
) -> TiledCost:
    """Price one axis in closed form.

    Parameters
    ----------
    volume : Volume or None
        What is sent along it; None: nothing.
    size : int
        Of the axis.
    row : sequence of int
        Its factor at each tier.
    tiers : sequence of MachineTier
        Outermost first.

    Returns
    -------
    TiledCost
        As `traffic_of` would find it.
    """
    if volume is None or size == 1:
        return TiledCost((0.0,) * len(tiers), 0.0, 0.0)
    blocks = (size // np.cumprod(row)).tolist()
    ranks, seconds = 1, []
    for block, tier in zip(reversed(blocks), reversed(tiers), strict=True):
        lines = ranks // block  # of the axis, through one group
        seconds.append(lines * _leaving(volume, size, block) * tier.seconds_per_byte)
        ranks *= tier.arity
    per_tier = tuple(reversed(seconds))
    latency_s = _latency(volume, size, blocks, [tier.latency_s for tier in tiers])
    return TiledCost(per_tier, latency_s, max(per_tier) + latency_s)


def _leaving(volume: Volume, size: int, block: int) -> float:
    """Give the bytes that leave a block of one line, the busiest one's."""
    if block == size:
        return 0.0
    if volume.pattern == "all":
        return volume.nbytes * block * (size - block) / (size - 1)
    both = volume.pattern == "torus" or (volume.pattern == "line" and size // block > 2)
    return float(volume.nbytes * (2 if both else 1))


def _latency(volume: Volume, size: int, blocks: Sequence[int], latencies: Sequence[float]) -> float:
    """Give the largest sum of latencies of one rank along a line."""
    if volume.pattern == "all":
        outside = [size, *blocks[:-1]]
        return float(sum((o - b) * s for o, b, s in zip(outside, blocks, latencies, strict=True)))
    before = np.zeros(size)  # the latency between coordinate c - 1 and c
    for block, latency_s in reversed([*zip(blocks, latencies, strict=True)]):
        before[::block] = latency_s  # outer tiers overwrite inner ones
    before[0] = next(s for b, s in zip(blocks, latencies, strict=True) if b < size)
    after = np.roll(before, -1)
    if volume.pattern == "ring":
        return float(after.max())
    if volume.pattern == "line":
        before[0] = after[-1] = 0.0
    return float((before + after).max())


def tiled(shape: Sequence[int], rows: Rows, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give the order of a tiling.

    Parameters
    ----------
    shape : sequence of int
        Sizes of the axes.
    rows : tuple of tuple of int
        For each axis its factor at each tier.
    ranks : ndarray, shape (size,), dtype int64
        Ranks, group by group.

    Returns
    -------
    ndarray, shape (sizes of the axes), dtype int64
        Rank by position.
    """
    factors = np.array(rows, dtype=np.int64)
    axes, depth = factors.shape
    by_tier = ranks.reshape(tuple(factors.T.reshape(-1).tolist()))
    digits = [tier * axes + axis for axis in range(axes) for tier in range(depth)]
    return by_tier.transpose(digits).reshape(tuple(shape))
