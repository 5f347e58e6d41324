"""Levels of a topology, from the positions that ranks report; pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from closeranks.comms.discovery.slurm_environment import Address
from closeranks.comms.topology.level_table import MAX_LEVELS, first_ranks, renumber

Row = npt.NDArray[np.int32]


def number_groups(labels: Sequence[Hashable]) -> Row:
    """Give labels of any kind numbers in order of their first rank.

    Parameters
    ----------
    labels : sequence of hashable
        One a rank.

    Returns
    -------
    ndarray, shape (len(labels),), dtype int32
        Group numbers.
    """
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(label, len(known)) for label in labels]
    return np.array(numbers, dtype=np.int32)


def above(nodes: Row, sites: Sequence[str], addresses: Sequence[Address]) -> list[tuple[str, Row]]:
    """Return the levels above the nodes: site, then SLURM's.

    Parameters
    ----------
    nodes : ndarray, shape (size,), dtype int32
        Node of each rank.
    sites : sequence of str
        Site of each node, "" where none was named.
    addresses : sequence of Address
        SLURM's address of each node, empty where unknown.

    Returns
    -------
    list of (str, ndarray)
        Level name and group of each rank, outermost first.  SLURM's levels
        are left out where a node's address is unknown or of another kind.
    """
    columns: list[tuple[str, list[Hashable]]] = []
    if any(sites):
        columns.append(("site", list(sites)))
    columns += _switches(sites, addresses)
    return [(name, renumber(number_groups(labels)[nodes])) for name, labels in columns]


def _switches(
    sites: Sequence[str], addresses: Sequence[Address]
) -> list[tuple[str, list[Hashable]]]:
    """Return SLURM's levels, shallow trees filled up at the outer end."""
    deepest = max(addresses, key=lambda address: len(address.levels))
    names = deepest.levels
    for address in addresses:
        depth = len(address.levels)
        if not depth or names[len(names) - depth :] != address.levels:
            return []
    columns: list[tuple[str, list[Hashable]]] = []
    for i, name in enumerate(names):
        # the whole way down is the label, so that groups nest whatever the names
        labels: list[Hashable] = [
            (site, ("",) * (len(names) - len(address.labels)) + address.labels)
            for site, address in zip(sites, addresses, strict=True)
        ]
        columns.append((name, [(label[0], label[1][: i + 1]) for label in labels]))  # type: ignore[index]
    return columns


def inside(
    nodes: Row, places: Sequence[tuple[str, npt.NDArray[np.int64]]]
) -> list[tuple[str, Row]]:
    """Return the levels inside the nodes that every rank knows its place in.

    Parameters
    ----------
    nodes : ndarray, shape (size,), dtype int32
        Node of each rank.
    places : sequence of (str, ndarray of shape (size,))
        Level name and each rank's package, NUMA domain or cache by its number
        in the node, -1 where it is not bound inside one.

    Returns
    -------
    list of (str, ndarray)
        Level name and group of each rank, outermost first; one that does not
        lie inside its predecessor is left out.
    """
    found = []
    for name, numbers in places:
        if numbers.min() >= 0:
            found.append((name, renumber(nodes.astype(np.int64) * (1 << 20) + numbers)))
    found.sort(key=lambda level: int(level[1].max()))
    kept: list[tuple[str, Row]] = []
    for name, row in found:
        parent = kept[-1][1] if kept else nodes
        if np.array_equal(parent[first_ranks(row)][row], parent):
            kept.append((name, row))
    return kept


def drop_trivial(levels: Sequence[tuple[str, Row]]) -> list[tuple[str, Row]]:
    """Leave out levels that are equal to a neighbouring level.

    Parameters
    ----------
    levels : sequence of (str, ndarray)
        Level name and group of each rank, outermost first, each inside its
        predecessor.

    Returns
    -------
    list of (str, ndarray)
        "node" and "rank" always stay; of other equal neighbours the outer
        one; a level with a single group equals the world and goes.
    """
    kept: list[tuple[str, Row]] = []
    fixed = [(name, row) for name, row in levels if name in ("node", "rank")]
    for name, row in levels:
        if name not in ("node", "rank"):
            seen = [other for _, other in (*kept, *fixed)]
            if not row.any() or any(np.array_equal(row, other) for other in seen):
                continue
        kept.append((name, row))
    surplus = len(kept) - MAX_LEVELS
    if surplus > 0:
        extra = [level for level in kept if level[0] not in ("site", "node", "rank")][:surplus]
        kept = [level for level in kept if not any(level is other for other in extra)]
    return kept
