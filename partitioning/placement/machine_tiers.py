"""A machine as nested equal groups, called tiers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.traffic import rate


class MachineTier(NamedTuple):
    """One way to cut each group of a machine into equal groups.

    Attributes
    ----------
    arity : int
        Groups inside each parent group.
    seconds_per_byte : float
        Of what leaves or enters a group.
    latency_s : float
        Of a message between two groups of a parent.
    """

    arity: int
    seconds_per_byte: float
    latency_s: float


def used_levels(topology: Topology) -> list[int]:
    """Give the levels that separate ranks: those with more than one group."""
    return [i for i, name in enumerate(topology.levels) if topology.count(name) > 1]


def is_regular(topology: Topology) -> bool:
    """Tell whether all groups of a level have equally many ranks, at every level."""
    return all(len(set(topology.sizes(name).tolist())) == 1 for name in topology.levels)


def tiers_of(topology: Topology, sizes: Sequence[int]) -> list[MachineTier]:
    """Give the tiers of a machine whose groups have given sizes.

    A level with one group in each parent carries what its parent carries: the
    two are one tier, as slow as the slower, with the outer one's latency.

    Parameters
    ----------
    topology : Topology
        The machine, with known links.
    sizes : sequence of int
        Ranks in a group, for each of `used_levels`; each divides the one before.

    Returns
    -------
    list of MachineTier
        Outermost first.
    """
    tiers: list[MachineTier] = []
    inside = topology.size
    for level, size in zip(used_levels(topology), sizes, strict=True):
        name = topology.levels[level]
        slow = 1.0 / rate(topology, name)
        if inside == size and tiers:
            last = tiers[-1]
            tiers[-1] = last._replace(seconds_per_byte=max(last.seconds_per_byte, slow))
        elif inside != size:
            tiers.append(MachineTier(inside // size, slow, topology.links[name].latency_s or 0.0))
        inside = size
    return tiers


def regular_tiers(topology: Topology) -> list[MachineTier]:
    """Give the tiers of a machine for which `is_regular` holds.

    Parameters
    ----------
    topology : Topology
        The machine, with known links.

    Returns
    -------
    list of MachineTier
        Outermost first; their arities multiply to the number of ranks.
    """
    sizes = [int(topology.sizes(topology.levels[i])[0]) for i in used_levels(topology)]
    tiers = tiers_of(topology, sizes)
    assert prod(tier.arity for tier in tiers) == topology.size
    return tiers


def depth_first(topology: Topology) -> npt.NDArray[np.int64]:
    """Give the ranks group by group, large groups before small ones.

    Parameters
    ----------
    topology : Topology
        The machine.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        Ranks of a group are neighbours, at every level.
    """
    keys: list[npt.NDArray[np.int64]] = []
    for name, row in zip(topology.levels, topology.groups, strict=True):
        keys += [-topology.sizes(name)[row], row.astype(np.int64)]
    return np.lexsort(keys[::-1])
