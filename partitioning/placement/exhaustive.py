"""The price of every distinct order, where these are few."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.traffic import Messages, rate
from closeranks.partitioning.placement.arrangements import Orders, distinct_orders
from closeranks.partitioning.placement.machine_tiers import used_levels
from closeranks.partitioning.placement.ranked import Shortlist, comparable
from closeranks.partitioning.placement.workload import Workload, matrix

#: Machines with more ranks, or more distinct orders, are searched in other ways.
MOST_RANKS: Final = 16
MOST_ORDERS: Final = 50_000
#: Elements of an array of the pass over a part of the orders.
_AT_ONCE: Final = 1 << 18
#: Orders of one price that are looked at for different figures.
_OF_ONE_PRICE: Final = 16

Floats = npt.NDArray[np.float64]


def few_orders(topology: Topology) -> Orders | None:
    """Give all distinct orders of a machine, or None if they are too many to search."""
    return distinct_orders(topology, MOST_ORDERS) if topology.size <= MOST_RANKS else None


def propose_all(workload: Workload, shortlist: Shortlist, top: int) -> bool:
    """Propose the cheapest of all orders.

    Parameters
    ----------
    workload : Workload
        The messages.
    shortlist : Shortlist
        Gets the best order, and more until it has `top`.
    top : int
        How many are wanted.

    Returns
    -------
    bool
        False if there are too many orders: nothing was proposed.
    """
    orders = few_orders(workload.topology)
    if orders is None:
        return False
    prices = seconds_of(workload, orders)
    by_price = np.argsort(prices, kind="stable")
    least = float(prices[by_price[0]])
    alike = np.flatnonzero(prices <= least + abs(least) * 1e-11)
    shortlist.propose(orders[alike[0]])
    if top == 1:
        return True
    seen: dict[float, int] = {}
    for row in by_price.tolist():
        price = comparable(float(prices[row]))
        if price not in seen and len(shortlist) > top:  # the default may be no good
            break
        seen[price] = seen.get(price, 0) + 1
        if seen[price] <= _OF_ONE_PRICE:
            shortlist.propose(orders[row])
    return True


def seconds_of(workload: Workload, orders: Orders) -> Floats:
    """Price many orders.

    Parameters
    ----------
    workload : Workload
        The messages.
    orders : ndarray, shape (orders, size)
        Rank by position.

    Returns
    -------
    ndarray, shape (orders,), dtype float64
        Seconds, as `MeshCost` has them but for rounding.
    """
    topology = workload.topology
    size = topology.size
    sums, latency = _load_sums(topology), _latencies(topology)
    positions = np.argsort(orders, axis=1).astype(np.int64)
    total = np.zeros(len(orders))
    step = max(1, _AT_ONCE // size**2)
    for sent in workload.messages():
        bytes_of = matrix([sent], size).reshape(-1)
        count_of = matrix([sent._replace(nbytes=np.ones(sent.nbytes.size))], size).reshape(-1)
        always = _rank_seconds(topology, sent)
        for start in range(0, len(orders), step):
            at = positions[start : start + step]
            pairs = (at[:, :, None] * size + at[:, None, :]).reshape(len(at), -1)
            slowest = (bytes_of[pairs] @ sums).max(axis=1, initial=always)
            waits = (count_of[pairs] * latency).reshape(len(at), size, size).sum(axis=2)
            total[start : start + step] += slowest + waits.max(axis=1)
    return total


def _rank_seconds(topology: Topology, sent: Messages) -> float:
    """Give the time of the busiest rank at its own link, the same in every order."""
    out = np.bincount(sent.sources, sent.nbytes, topology.size).max()
    into = np.bincount(sent.targets, sent.nbytes, topology.size).max()
    return float(max(out, into)) / rate(topology, topology.levels[-1])


def _load_sums(topology: Topology) -> Floats:
    """Give the seconds a byte from rank to rank (rows) adds to each load (columns)."""
    columns: list[npt.NDArray[Any]] = [np.zeros((topology.size, topology.size))]
    for level in used_levels(topology)[:-1]:
        row = topology.groups[level]
        slow = 1.0 / rate(topology, topology.levels[level])
        for group in range(int(row.max()) + 1):
            leaving = ((row == group)[:, None] & (row != group)[None]) * slow
            columns += [leaving, leaving.T]
    for (name, a, b), link in topology.exceptions.items():
        between = _between(topology, name, a, b) / ((link.bytes_per_s or 1.0) * (link.rails or 1))
        columns += [between, between.T]
    return np.stack([one.reshape(-1) for one in columns], axis=1)


def _latencies(topology: Topology) -> Floats:
    """Give the latency between each two ranks, in a row."""
    ranks = np.arange(topology.size)
    by_level = [topology.links[name].latency_s or 0.0 for name in topology.levels]
    found = np.array([*by_level, 0.0])[topology.level_indices(ranks[:, None], ranks[None])]
    for (name, a, b), link in topology.exceptions.items():
        forth = _between(topology, name, a, b)
        found[forth | forth.T] = link.latency_s or 0.0
    return found.reshape(-1)


def _between(topology: Topology, name: str, a: int, b: int) -> npt.NDArray[np.bool_]:
    """Mark the pairs of ranks that the link of two groups serves, one way."""
    level = topology.position(name)
    row, ranks = topology.groups[level], np.arange(topology.size)
    there = topology.level_indices(ranks[:, None], ranks[None]) == level
    marked: npt.NDArray[np.bool_] = there & (row == a)[:, None] & (row == b)[None]
    return marked
