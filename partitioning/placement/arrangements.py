"""All orders of the ranks that differ in more than a symmetry of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology

Orders = npt.NDArray[np.int16]


def distinct_orders(topology: Topology, limit: int) -> Orders | None:
    """Give an order of each kind, in lexicographic order.

    Sibling groups of the same make are interchangeable while none of their
    ranks is placed; then the first of them stands for all.  Groups with an
    exception, or with one inside, are like no other.

    Parameters
    ----------
    topology : Topology
        The machine.
    limit : int
        Give up if there are more.

    Returns
    -------
    ndarray, shape (orders, size), dtype int16, or None
        Rank by position; None if there are too many.
    """
    before = _groups_before(topology)
    size = topology.size
    orders: Orders = np.zeros((1, 0), dtype=np.int16)
    started = [np.zeros((1, len(row)), dtype=bool) for row in before]
    for _ in range(size):
        allowed = ~started[-1]
        for begun, row, earlier in zip(started, topology.groups, before, strict=True):
            ready = begun | (earlier < 0) | begun[:, earlier]
            allowed = allowed & ready[:, row]
        branch, rank = np.nonzero(allowed)
        if branch.size > limit:
            return None
        orders = np.column_stack((orders[branch], rank.astype(np.int16)))
        started = [begun[branch] for begun in started]
        for begun, row in zip(started, topology.groups, strict=True):
            begun[np.arange(branch.size), row[rank]] = True
    return orders


def _groups_before(topology: Topology) -> list[npt.NDArray[np.int64]]:
    """Give for each group the interchangeable sibling before it, or -1; by level."""
    named = {(name, group) for name, *pair in topology.exceptions for group in pair}
    makes: list[dict[int, Any]] = []
    inner: dict[int, Any] = {}
    for level in reversed(range(len(topology.levels))):
        name = topology.levels[level]
        children: dict[int, list[Any]] = {g: [] for g in range(topology.count(name))}
        if level + 1 < len(topology.levels):
            firsts = np.unique(topology.groups[level + 1], return_index=True)[1]
            for child, parent in enumerate(topology.groups[level][firsts].tolist()):
                children[parent].append(inner[child])
        inner = {}
        for group, made in children.items():
            special = (name, group) in named or any("only" in str(one) for one in made)
            inner[group] = f"only {name} {group}" if special else f"({','.join(sorted(made))})"
        makes.insert(0, inner)
    return [_one_before(topology, level, make) for level, make in enumerate(makes)]


def _one_before(topology: Topology, level: int, make: dict[int, Any]) -> npt.NDArray[np.int64]:
    """Give for each group of a level the sibling of its make before it, or -1."""
    last: dict[tuple[int, Any], int] = {}
    before = np.full(len(make), -1, dtype=np.int64)
    firsts = np.unique(topology.groups[level], return_index=True)[1]
    parents = topology.groups[level - 1][firsts] if level else np.zeros(len(make), dtype=np.int64)
    for group, parent in enumerate(parents.tolist()):
        key = (parent, make[group])
        before[group] = last.get(key, -1)
        last[key] = group
    return before
