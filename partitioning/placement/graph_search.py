"""The cheapest order of the ranks for messages between any pairs."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError
from closeranks.partitioning.mesh.traffic import Messages, check_links
from closeranks.partitioning.placement.exhaustive import propose_all
from closeranks.partitioning.placement.graph_partition import (
    partitions,
    whole_weights,
)
from closeranks.partitioning.placement.machine_tiers import (
    depth_first,
    is_regular,
    regular_tiers,
)
from closeranks.partitioning.placement.mesh_recognition import RecognisedMesh, recognised
from closeranks.partitioning.placement.near_tilings import near_orders
from closeranks.partitioning.placement.ranked import Placement, Shortlist
from closeranks.partitioning.placement.swaps import SwapSearch, exchange_groups
from closeranks.partitioning.placement.tilings import best_tilings, tiled
from closeranks.partitioning.placement.workload import GraphWorkload, matrix

#: More ranks get no dense matrix, which the partition needs.
_MOST_DENSE: Final = 2048
#: Tilings of a recognised mesh that are looked at.
_TILINGS: Final = 8
_NEAR: Final = 40
#: Rounds of partitions, where the messages are not those of a mesh.
_ROUNDS: Final = 8
#: Exchanges of ranks that are tried; fewer where a trial reads many messages.
_TRIALS: Final = 1500
_MESSAGES_READ: Final = 1 << 28
_REMEDY: Final = "give bytes of at least 0 from each rank (row) to each other (column)"


def place_graph(weights: Any, topology: Topology) -> Placement:
    """Find the order of the ranks in which given messages cost least.

    Machines with few distinct orders are searched through, as by `place`.  On
    larger ones these are tried and improved by exchanges of ranks [1]_: a
    partition from the outermost level inwards, groups joined from the innermost
    level outwards [2]_, and tilings, if the messages are those of a mesh.
    Local and pure; equal arguments give equal placements on every rank.

    Parameters
    ----------
    weights : array_like or SciPy sparse, shape (size, size)
        Bytes from the process of the row to that of the column in a step; the
        diagonal is ignored.
    topology : Topology
        The machine, with known links.

    Returns
    -------
    Placement
        Its mesh has one axis "rank": ``mesh.ranks[p]`` is the rank of process
        p.  It costs what one axis of `Mesh.cost` does: all messages travel
        together, one for each entry that is not 0.  Never dearer than rank = p.

    Raises
    ------
    UsageError
        If it is no square matrix of the machine's size, or a number in it is
        negative or not finite.
    TopologyError
        If a link has no known latency or rate; it names the level.

    References
    ----------
    .. [1] B. W. Kernighan and S. Lin, An efficient heuristic procedure for
       partitioning graphs, 1970.
    .. [2] E. Jeannot and G. Mercier, Near-optimal placement of MPI processes
       on hierarchical NUMA architectures, Euro-Par 2010 (TreeMatch).  Groups
       grow position by position here, not from all combinations.

    Examples
    --------
    >>> talk = [[0, 0, 0, 9], [0, 0, 9, 0], [0, 9, 0, 0], [9, 0, 0, 0]]
    >>> place_graph(talk, Topology.regular(node=2, rank=2)).mesh.ranks.tolist()
    [0, 2, 3, 1]
    """
    argument.instance("place_graph", "topology", topology, Topology, "give a Topology")
    sent = _read(weights, topology.size)
    check_links("place_graph", topology)
    workload = GraphWorkload(sent, topology)
    shortlist = Shortlist(workload)
    regular = is_regular(topology)
    alike = regular and len(regular_tiers(topology)) <= 1 and not topology.exceptions
    if alike or not sent.nbytes.size or propose_all(workload, shortlist, 1):
        return shortlist.placements(1, proved=True)[0]
    found = recognised(sent, topology.size)
    if found is not None:
        _propose_as_mesh(found, workload, shortlist, regular)
    _propose_parts(workload, shortlist, regular, _ROUNDS if found is None else 1)
    if topology.exceptions:
        exchange_groups(workload, shortlist)
    trials = min(_TRIALS, _MESSAGES_READ // workload.count())
    shortlist.propose(SwapSearch(workload, shortlist.best()).run(trials))
    return shortlist.placements(1, proved=False)[0]


def _propose_as_mesh(
    found: RecognisedMesh, workload: GraphWorkload, shortlist: Shortlist, regular: bool
) -> None:
    """Propose tilings of the mesh whose messages these are."""
    topology = workload.topology
    shape, sending, positions = found
    if not regular:
        for order in islice(near_orders(shape, sending, topology, 2, together=True), _NEAR):
            shortlist.propose(order.reshape(-1)[positions])
        return
    ranks = depth_first(topology)
    ways = best_tilings(shape, sending, regular_tiers(topology), 8 * _TILINGS, together=True)
    for _, rows in ways[:_TILINGS]:
        shortlist.propose(tiled(shape, rows, ranks).reshape(-1)[positions])


def _propose_parts(
    workload: GraphWorkload, shortlist: Shortlist, regular: bool, rounds: int
) -> None:
    """Propose partitions; of large graphs an order that keeps neighbours close."""
    topology, sent = workload.topology, workload.sent
    if topology.size > _MOST_DENSE:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        shape = (topology.size, topology.size)
        graph = coo_array((sent.nbytes, (sent.sources, sent.targets)), shape=shape).tocsr()
        order = np.empty(topology.size, dtype=np.int64)
        order[reverse_cuthill_mckee(graph)] = depth_first(topology)
        shortlist.propose(order)
        return
    weights = whole_weights(matrix([sent], topology.size))
    arities = [tier.arity for tier in regular_tiers(topology)] if regular else None
    for order in partitions(weights, topology, arities, rounds):
        shortlist.propose(order)


def _read(weights: Any, size: int) -> Messages:
    """Read the messages of a matrix, dense or sparse."""
    if hasattr(weights, "tocsr"):
        found = weights.tocsr().tocoo()  # entries of one pair are added
        shape, rows, columns, values = found.shape, found.row, found.col, found.data
    else:
        values = _dense(weights)
        shape = values.shape
        rows, columns = np.nonzero(values) if values.ndim == 2 else (np.zeros(0), np.zeros(0))
    if shape != (size, size):
        raise UsageError("place_graph", f"weights have shape {shape}, the topology {size} ranks",
                         _REMEDY)  # fmt: skip
    if values.dtype.kind not in "biuf":
        raise UsageError("place_graph", f"weights have dtype {values.dtype}", _REMEDY)
    if values.ndim == 2:
        values = values[rows, columns]
    off = rows != columns
    nbytes = values[off].astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(nbytes) & (nbytes >= 0)))
    if wrong.size:
        p, q = int(rows[off][wrong[0]]), int(columns[off][wrong[0]])
        problem = f"weight {nbytes[wrong[0]]} from {p} to {q}"
        raise UsageError("place_graph", problem, _REMEDY)
    some = nbytes > 0
    sources, targets = rows[off][some].astype(np.int64), columns[off][some].astype(np.int64)
    return Messages(sources, targets, nbytes[some])


def _dense(weights: Any) -> npt.NDArray[Any]:
    """Read an array; refuse what is none."""
    try:
        return np.asarray(weights)
    except (TypeError, ValueError):
        raise UsageError("place_graph", f"weights are {argument.shown(weights)}",
                         _REMEDY) from None  # fmt: skip
