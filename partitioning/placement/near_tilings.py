"""Orders for machines of unequal groups: tilings of similar regular machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations
from typing import Final

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.machine_tiers import (
    MachineTier,
    depth_first,
    tiers_of,
    used_levels,
)
from closeranks.partitioning.placement.tilings import best_tilings, tiled

_MOST_MACHINES: Final = 48
_MOST_AXIS_ORDERS: Final = 24


def near_orders(
    shape: Sequence[int],
    sending: Mapping[int, Volume],
    topology: Topology,
    kept: int,
    *,
    together: bool = False,
) -> Iterator[npt.NDArray[np.int64]]:
    """Give orders that are good where groups are nearly equal.

    Parameters
    ----------
    shape : sequence of int
        Sizes of the axes.
    sending : mapping of int to Volume
        Index of each axis that sends -> its volume.
    topology : Topology
        The machine, with known links.
    kept : int
        Tilings of each regular machine that is tried.
    together : bool
        Whether the axes send at the same time.

    Yields
    ------
    ndarray, shape (sizes of the axes), dtype int64
        Rank by position, each once.
    """
    ranks = depth_first(topology)
    seen: set[bytes] = set()
    for order in _orders(shape, sending, topology, ranks, kept, together):
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield order


def near_tiers(topology: Topology) -> list[MachineTier]:
    """Give the tiers of a machine, or of a regular one near it.

    Parameters
    ----------
    topology : Topology
        The machine, with known links.

    Returns
    -------
    list of MachineTier
        Outermost first; their arities multiply to the number of ranks.
    """
    return tiers_of(topology, next(_chains(topology, 0, topology.size)))


def _orders(
    shape: Sequence[int],
    sending: Mapping[int, Volume],
    topology: Topology,
    ranks: npt.NDArray[np.int64],
    kept: int,
    together: bool,
) -> Iterator[npt.NDArray[np.int64]]:
    for sizes in islice(_chains(topology, 0, topology.size), _MOST_MACHINES):
        tiers = tiers_of(topology, sizes)
        for _, rows in best_tilings(shape, sending, tiers, kept, together=together):
            yield np.ascontiguousarray(tiled(shape, rows, ranks))
    for axes in islice(permutations(range(len(shape))), _MOST_AXIS_ORDERS):
        inner = ranks.reshape([shape[axis] for axis in axes])
        yield np.ascontiguousarray(inner.transpose(np.argsort(axes)))


def _chains(topology: Topology, depth: int, outside: int) -> Iterator[tuple[int, ...]]:
    """Give sizes of groups, level by level, each a divisor of the one outside it."""
    levels = used_levels(topology)
    if depth == len(levels):
        yield ()
        return
    sizes = topology.sizes(topology.levels[levels[depth]])
    divisors = [d for d in range(1, outside + 1) if outside % d == 0]
    middle = topology.size / sizes.size
    near = min(divisors, key=lambda d: (abs(d - middle), d))
    below = max(d for d in divisors if d <= max(1, int(sizes.max())))
    common = max((int(s) for s in np.unique(sizes) if outside % int(s) == 0), default=near)
    for size in sorted({near, below, common}, reverse=True) if sizes.max() > 1 else [1]:
        for inner in _chains(topology, depth + 1, size):
            yield (size, *inner)
