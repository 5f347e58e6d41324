"""The price of a step on a mesh: time, and bytes over each level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.traffic import Traffic


class MeshCost(NamedTuple):
    """The price of one step.

    Attributes
    ----------
    seconds : float
        Predicted time, the sum over the axes.  An axis takes the largest of
        bytes over rate, over all groups of all levels and all pairs with a
        link of their own, plus the largest sum of latencies of one rank.
    bytes_per_level : dict of str to int or float
        Level name -> bytes the busiest rank sends over its link.
    group_bytes_per_level : dict of str to int or float
        Level name -> bytes that leave or enter the busiest group of the level
        (for "node": bytes of all network cards of the node).
    """

    seconds: float
    bytes_per_level: dict[str, int | float]
    group_bytes_per_level: dict[str, int | float]


def priced(topology: Topology, axes: Sequence[Traffic]) -> MeshCost:
    """Price the traffic of the axes of a mesh.

    Parameters
    ----------
    topology : Topology
        The machine, with known links.
    axes : sequence of Traffic
        Of each axis that sends; none is allowed.

    Returns
    -------
    MeshCost
        Of all together.
    """
    levels = topology.levels
    if not axes:
        return MeshCost(0.0, dict.fromkeys(levels, 0), dict.fromkeys(levels, 0))
    return MeshCost(
        sum(one.seconds(topology) for one in axes),
        busiest_ranks(topology, axes),
        {
            name: _number(max(
                float(sum(one.leaving[level] for one in axes).max()),  # type: ignore[union-attr]
                float(sum(one.entering[level] for one in axes).max()),  # type: ignore[union-attr]
            ))
            for level, name in enumerate(levels)
        },
    )  # fmt: skip


def busiest_ranks(topology: Topology, axes: Sequence[Traffic]) -> dict[str, int | float]:
    """Give the bytes that the busiest rank sends over each level.

    Parameters
    ----------
    topology : Topology
        The machine.
    axes : sequence of Traffic
        Of each axis that sends; none is allowed.

    Returns
    -------
    dict of str to int or float
        Level name -> bytes.
    """
    total = np.zeros((len(topology.levels), topology.size))
    for one in axes:
        total += one.sent
    return dict(zip(topology.levels, map(_number, total.max(axis=1).tolist()), strict=True))


def _number(value: float) -> int | float:
    """Give whole bytes as such."""
    return int(value) if value.is_integer() else value
