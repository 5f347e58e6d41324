"""Classes of ranks that do the same, so that one rank can stand for all.

Two ranks are of one class if they send as many messages and bytes over each
level of the topology, round by round where an algorithm has logarithmic
rounds.  Where all ranks send to all, or to a neighbour, the place in the node
tells ranks apart too as long as that is affordable: it decides when a message
crosses nodes.  All classes are computed for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.topology.topology import Topology

Ints = NDArray[np.int64]
#: So few ranks are classes of their own.
FEW = 16
#: Above this many cells (ranks times classes) classes are not told apart for timing.
_CELLS = 1 << 14
#: The same of a chain, where ranks have few steps each.
_CHAIN_CELLS = 1 << 21


class Round(NamedTuple):
    """The items that every member sends in one round.

    Attributes
    ----------
    goal : ndarray of int64, shape (members,)
        Place of the receiver, -1 where nothing is sent.
    items : ndarray of int64, shape (members,)
        Items sent.
    """

    goal: Ints
    items: Ints


def classify(size: int, columns: Iterable[NDArray[np.int64]]) -> Ints:
    """Give every different row of a table, given by its columns, a number.

    Parameters
    ----------
    size : int
        Rows.
    columns : iterable of ndarray, shape (size,)
        Any integers.

    Returns
    -------
    ndarray of int64, shape (size,)
        Equal for equal rows.
    """
    if size <= FEW:
        return np.arange(size)
    classes = np.zeros(size, dtype=np.int64)
    for column in columns:
        if (column != column[0]).any():
            values, dense = np.unique(column, return_inverse=True)
            _, classes = np.unique(classes * len(values) + dense, return_inverse=True)
    return classes.astype(np.int64)


def by_rounds(
    topology: Topology, members: Ints, rounds: Iterable[Round], extra: Iterable[Ints] = ()
) -> Ints:
    """Classes of an algorithm that is given by its rounds.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.
    members : ndarray of int64, shape (size,)
        Rank at each place.
    rounds : iterable of Round
        By place.
    extra : iterable of ndarray, shape (size,)
        Further numbers that tell places apart.

    Returns
    -------
    ndarray of int64, shape (size,)
        Class of each rank.
    """
    columns = list(extra)
    for goal, items in rounds:
        sends = (goal >= 0) & (items > 0)
        columns.append(np.where(sends, levels(topology, members, goal), -1))
        columns.append(np.where(sends, items, 0))
    return placed(members, classify(len(members), columns))


def levels(topology: Topology, members: Ints, goal: Ints) -> Ints:
    """Level between each place and its ``goal``; of no meaning where that is -1."""
    return topology.level_indices(members, members[goal]).astype(np.int64)


def placed(members: Ints, by_place: Ints) -> Ints:
    """Turn an array by place into one by rank."""
    by_rank = np.empty_like(by_place)
    by_rank[members] = by_place
    return by_rank


def timed(topology: Topology, classes: Ints) -> Ints:
    """Tell ranks of different place in their node apart where affordable."""
    if len(topology.levels) < 2:
        return classes
    node = topology.groups[-2].astype(np.int64)
    order = np.argsort(node, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(node))])
    place = np.empty_like(order)
    place[order] = np.arange(topology.size) - starts[node[order]]
    finer = classify(topology.size, (classes, place))
    return finer if (int(finer.max()) + 1) * topology.size <= _CELLS else classes


def over_levels(topology: Topology, weights: Ints) -> Ints:
    """Sum for every rank, per level, the weights of the ranks reached over it.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.
    weights : ndarray of int64, shape (size,)
        A weight of each rank.

    Returns
    -------
    ndarray of int64, shape (levels, size)
        The own weight is in no level.
    """
    groups = topology.groups
    inside = [np.full(topology.size, weights.sum())]
    for row in groups:
        sums = np.zeros(int(row.max()) + 1, dtype=np.int64)
        np.add.at(sums, row, weights)
        inside.append(sums[row])
    return -np.diff(np.array(inside), axis=0)


def to_everybody(topology: Topology, items: Ints) -> Ints:
    """Classes where every rank sends ``items[r]`` items to each other rank ``r``."""
    bytes_by_level = over_levels(topology, items)
    messages_by_level = over_levels(topology, (items > 0).astype(np.int64))
    return timed(topology, classify(topology.size, (*bytes_by_level, *messages_by_level)))


def from_everybody(topology: Topology, items: Ints) -> Ints:
    """Classes where every rank ``r`` sends ``items[r]`` items to each other rank."""
    receivers = over_levels(topology, np.ones(topology.size, dtype=np.int64))
    return timed(topology, classify(topology.size, (*receivers, items)))


def round_the_ring(topology: Topology, members: Ints, items: Ints, *, reduces: bool) -> Ints:
    """Classes of a ring whose place ``j`` owns ``items[j]`` items.

    A reduce-scatter sends all chunks but the own one to the right neighbour, an
    allgather all but the neighbour's.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.
    members : ndarray of int64, shape (size,)
        Rank at each place.
    items : ndarray of int64, shape (size,)
        By place.
    reduces : bool
        Whether it starts with a reduce-scatter.
    """
    places = np.arange(len(members))
    right, left = np.roll(places, -1), np.roll(places, 1)
    columns = [levels(topology, members, right), levels(topology, members, left)]
    columns.append(items[right])
    if reduces:
        columns.append(items)
    return timed(topology, placed(members, classify(len(members), columns)))


def along_a_chain(topology: Topology, members: Ints) -> Ints:
    """Classes of a chain, where neighbours wait: as many as are affordable."""
    size = len(members)
    places = np.arange(size)
    most = max(1, _CHAIN_CELLS // size)
    section = places if size <= most else places * most // size
    following = np.minimum(places + 1, size - 1)
    across = levels(topology, members, following)
    return placed(members, classify(size, (section, across, places == size - 1)))
