"""The cheapest orders of the ranks of a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from closeranks.comms import argument
from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.traffic import check_links
from closeranks.partitioning.mesh.volume import Volume, checked_volumes
from closeranks.partitioning.placement.exhaustive import propose_all
from closeranks.partitioning.placement.graph_partition import partitions, whole_weights
from closeranks.partitioning.placement.machine_tiers import (
    depth_first,
    is_regular,
    regular_tiers,
)
from closeranks.partitioning.placement.near_tilings import near_orders
from closeranks.partitioning.placement.ranked import Placement, Shortlist
from closeranks.partitioning.placement.swaps import SwapSearch, exchange_groups
from closeranks.partitioning.placement.tilings import best_tilings, tiled
from closeranks.partitioning.placement.workload import MeshWorkload, matrix

#: Machines with more ranks, or steps with more messages, get no exchanges of ranks.
_MOST_RANKS: Final = 1024
_MOST_MESSAGES: Final = 1 << 17
#: Below this, regular machines get exchanges too: groups may be worth more than blocks.
_FEW_RANKS: Final = 64
_TRIALS: Final = 1500


def place(
    volumes: Mapping[str, Volume],
    topology: Topology,
    *,
    axes: Mapping[str, int],
    top: int = 1,
) -> list[Placement]:
    """Find the orders of the ranks in which a step on a mesh costs least.

    The price of an order is `Mesh.cost`.  Machines with few distinct orders
    are searched through: all of up to 8 ranks, and 2 nodes of 8 [1]_.  On
    larger regular machines the best tiling is taken: each level takes a factor
    of each axis.  On larger irregular ones tilings of similar regular machines
    and a partition of the messages are improved by exchanges of ranks.
    Local and pure; equal arguments give equal placements on every rank.

    Parameters
    ----------
    volumes : mapping of str to Volume
        Axis -> what each rank sends along it; axes left out send nothing.
    topology : Topology
        The machine, with known links.
    axes : mapping of str to int
        Name -> size, outermost first, as for `Mesh`; an axis may span levels.
    top : int
        At most so many placements.

    Returns
    -------
    list of Placement
        Best first, none of them dearer than the default.  Orders whose costs
        agree in every figure count as one.

    Raises
    ------
    UsageError
        If an axis is unknown, a size is not positive, the product is not the
        number of ranks, or ``top`` is not positive.
    TopologyError
        If a link has no known latency or rate; it names the level.

    Notes
    -----
    A message costs its latency and bytes over rate (Hockney's model), and the
    bytes of a group share its rails.

    References
    ----------
    .. [1] R. W. Hockney, The communication challenge for MPP, Parallel
       Computing 20, 1994.

    Examples
    --------
    >>> machine = Topology.regular(node=2, rank=4)
    >>> volumes = {"dp": Volume(1 << 10, "ring"), "tp": Volume(1 << 20, "all")}
    >>> best, = place(volumes, machine, axes={"tp": 4, "dp": 2})
    >>> best.mesh.ranks.tolist(), best.exact
    ([[0, 4], [1, 5], [2, 6], [3, 7]], True)
    """
    argument.instance("place", "topology", topology, Topology, "give a Topology")
    default = Mesh(axes, topology)
    found = checked_volumes("place", volumes, default.axes)
    wanted = argument.whole("place", "top", top, least=1)
    check_links("place", topology)
    return search_mesh(MeshWorkload(default.axes, found, topology), wanted)


def search_mesh(workload: MeshWorkload, top: int, *, quick: bool = False) -> list[Placement]:
    """Find the cheapest orders.

    Parameters
    ----------
    workload : MeshWorkload
        The messages, and the machine.
    top : int
        At most so many placements.
    quick : bool
        Whether to do without exchanges: a first guess where not all orders
        can be searched.

    Returns
    -------
    list of Placement
        Best first.
    """
    shortlist = Shortlist(workload)
    topology = workload.topology
    regular = is_regular(topology)
    alike = regular and len(regular_tiers(topology)) <= 1 and not topology.exceptions
    if alike or not workload.sending:  # all orders cost the same
        return shortlist.placements(top, proved=True)
    if propose_all(workload, shortlist, top):
        return shortlist.placements(top, proved=True)
    _propose_tilings(workload, shortlist, top, regular)
    few = topology.size <= _MOST_RANKS and workload.count() <= _MOST_MESSAGES
    uneven = not regular or bool(topology.exceptions)
    if few and not quick and (uneven or topology.size <= _FEW_RANKS):
        _improve(workload, shortlist)
    return shortlist.placements(top, proved=False)


def _propose_tilings(workload: MeshWorkload, shortlist: Shortlist, top: int, regular: bool) -> None:
    """Propose tilings of the machine, or of regular ones near it."""
    topology, shape = workload.topology, workload.shape
    if not regular:
        for order in near_orders(shape, workload.sending, topology, 1 + (top > 1)):
            shortlist.propose(order)
        return
    ranks, tiers = depth_first(topology), regular_tiers(topology)
    ways = best_tilings(shape, workload.sending, tiers, 1 if top == 1 else 8 * top)
    for _, rows in ways:
        shortlist.propose(tiled(shape, rows, ranks))
        if len(shortlist) > top:  # the default may be no good
            break


def _improve(workload: MeshWorkload, shortlist: Shortlist) -> None:
    """Exchange groups and ranks, from the best so far and from a partition."""
    topology = workload.topology
    if topology.exceptions:
        exchange_groups(workload, shortlist)
    weights = whole_weights(matrix(workload.messages(), topology.size))
    cuts = partitions(weights, topology, None, 2)
    by_price = {shortlist.propose(order).seconds: order for order in cuts}
    for start in (shortlist.best(), by_price[min(by_price)]):
        shortlist.propose(SwapSearch(workload, start).run(_TRIALS))
