"""Prices of all orders of up to eight ranks, from the words of the model alone."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Volume

PATTERNS = ("ring", "line", "torus", "all")


@cache
def orders(size: int) -> npt.NDArray[np.int64]:
    """Give all orders, lexicographic: rank by position."""
    return np.array([*permutations(range(size))], dtype=np.int64)


def along(shape: tuple[int, ...], axis: int, volume: Volume) -> tuple[Any, Any]:
    """Give bytes and numbers of messages from position to position."""
    size, n = int(np.prod(shape)), shape[axis]
    nbytes, count = np.zeros((size, size)), np.zeros((size, size))
    for p in range(size):
        at = [int(one) for one in np.unravel_index(p, shape)]
        c = at[axis]
        to = {
            "ring": [(c + 1) % n],
            "line": [one for one in (c - 1, c + 1) if 0 <= one < n],
            "torus": [(c - 1) % n, (c + 1) % n],
            "all": [one for one in range(n) if one != c],
        }[volume.pattern]
        for other in to if n > 1 and volume.nbytes else []:
            at[axis] = other
            q = int(np.ravel_multi_index(tuple(at), shape))
            nbytes[p, q] += volume.nbytes / (n - 1 if volume.pattern == "all" else 1)
            count[p, q] += 1
    return nbytes, count


def seconds(
    axes: list[tuple[Any, Any]], machine: Topology, of: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Price orders: the sum over axes of the slowest link and the longest latency."""
    size = machine.size
    inside = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    at = np.argsort(of, axis=1)
    total = np.zeros(len(of))
    for nbytes, count in axes:
        slowest, waits = np.zeros(len(of)), np.zeros((size, len(of)))
        leaving = ((inside @ nbytes) * (1 - inside)).sum(axis=1)
        entering = ((inside @ nbytes.T) * (1 - inside)).sum(axis=1)
        for level, name in enumerate(machine.levels):
            for group in range(machine.count(name)):
                some = _set(at, machine, level, group)
                most = np.maximum(leaving[some], entering[some])
                slowest = np.maximum(slowest, most / _rate(machine.links[name]))
        for (name, a, b), link in machine.exceptions.items():
            level = machine.position(name)
            first = machine.groups[:, machine.groups[level] == a][:, 0]
            second = machine.groups[:, machine.groups[level] == b][:, 0]
            if level and first[level - 1] != second[level - 1]:
                continue
            x, y = (inside[_set(at, machine, level, group)] for group in (a, b))
            forth, back = ((x @ one * y).sum(axis=1) for one in (nbytes, nbytes.T))
            slowest = np.maximum(slowest, np.maximum(forth, back) / _rate(link))
        for r in range(size):
            for s in range(size):
                if r != s:
                    latency = machine.link(r, s).latency_s or 0.0
                    waits[r] += count[at[:, r], at[:, s]] * latency
        total += slowest + waits.max(axis=0)
    return total


def _set(at: Any, machine: Topology, level: int, group: int) -> Any:
    """Give the set of positions in a group, a bit each, for every order."""
    members = np.flatnonzero(machine.groups[level] == group)
    return (1 << at[:, members]).sum(axis=1)


def _rate(link: Link) -> float:
    return (link.bytes_per_s or 0.0) * (link.rails or 1)


def regular_machines() -> list[Topology]:
    """Give every machine of equal groups at three levels, of up to eight ranks."""
    return [
        Topology.regular(site=a, node=b, rank=c)
        for a in range(1, 9)
        for b in range(1, 9)
        for c in range(1, 9)
        if a * b * c <= 8
    ]


def irregular_machines() -> list[Topology]:
    """Give twenty of unequal groups, half of them with exceptions."""
    draw = np.random.default_rng(20)
    found: list[Topology] = []
    while len(found) < 20:
        size = int(draw.integers(4, 9))
        node = draw.integers(0, 4, size)
        table = [node // 2, node, range(size)]
        machine = Topology.from_groups(("site", "node", "rank"), table)
        if len({*machine.sizes("node").tolist()}) > 1:
            found.append(machine.with_links({}, exceptions(machine, draw, len(found) % 2)))
    return found


def exceptions(
    machine: Topology, draw: np.random.Generator, wanted: int
) -> dict[tuple[str, int, int], Link]:
    """Make up links of single pairs of groups."""
    found = {}
    for level, name in enumerate(machine.levels if wanted else ()):
        firsts = np.unique(machine.groups[level], return_index=True)[1]
        parent = machine.groups[level - 1][firsts] if level else np.zeros(len(firsts))
        pairs = np.argwhere(np.triu(parent[:, None] == parent[None], 1)).tolist()
        for k in draw.permutation(len(pairs))[:2].tolist():  # others never use their link
            a, b = pairs[k]
            found[name, a, b] = link(draw)
    return found


def link(draw: np.random.Generator) -> Link:
    """Make up a link, some with rails, or with an unknown number of them."""
    rails = (1, 1, 2, 4, None)[int(draw.integers(5))]
    return Link(float(draw.uniform(0, 1e-4)), float(10 ** draw.uniform(6, 9)), rails)


def shape(size: int, count: int, draw: np.random.Generator) -> tuple[int, ...]:
    """Split a number of ranks over axes."""
    found = []
    for _ in range(count - 1):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        found.append(int(draw.choice(divisors)))
        size //= found[-1]
    return (*found, size)
