"""An order improved by exchanges of two ranks, or of two groups."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning.mesh.traffic import rate
from closeranks.partitioning.placement.machine_tiers import depth_first, used_levels
from closeranks.partitioning.placement.ranked import Shortlist
from closeranks.partitioning.placement.workload import Workload

#: A gain below this part of the time is rounding.
_TOLERANCE: Final = 1e-10
#: Pairs of groups that are exchanged in one pass, about, and passes.
_MOST_PAIRS: Final = 64
_PASSES: Final = 3

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _Loads(NamedTuple):
    """What an order costs: seconds of each axis at each group, and latencies.

    Attributes
    ----------
    busy : ndarray, shape (axes, loads), dtype float64
        Seconds of bytes that leave each group, that enter it, and that use each
        exception, forth and back.
    waits : ndarray, shape (axes, size), dtype float64
        Sum of the latencies of the messages of each position.
    """

    busy: Floats
    waits: Floats

    def key(self) -> tuple[float, float]:
        """Give the time, and a sum that tells orders of equal time apart."""
        seconds = float((self.busy.max(axis=1) + self.waits.max(axis=1)).sum())
        return seconds, float((self.busy**2).sum()) + float((self.waits**2).sum())


class SwapSearch:
    """Exchanges of two ranks that relieve the busiest group.

    Each trial takes an axis, its busiest group, a message that crosses the
    group's bounds, and brings one end of the message to the other's group, in
    exchange for a rank there.  A trial is kept if the step takes less time, or
    equal time with its loads spread better (the largest load is flat: most
    exchanges leave it as it is).  Trials are counted, not timed, and drawn by
    NumPy's PCG64 from a fixed seed, so every rank finds the same order.

    Parameters
    ----------
    workload : Workload
        The messages; some.
    order : ndarray of int
        Rank by position, to begin with.
    """

    def __init__(self, workload: Workload, order: npt.NDArray[Any]) -> None:
        self.topology = workload.topology
        self.order: Ints = order.reshape(-1).astype(np.int64)
        sent = workload.messages()
        self._sources = np.concatenate([one.sources for one in sent])
        self._targets = np.concatenate([one.targets for one in sent])
        self._nbytes = np.concatenate([one.nbytes for one in sent])
        self._axis = np.repeat(np.arange(len(sent)), [one.nbytes.size for one in sent])
        self._axes = len(sent)
        self._tables = _LinkTables(self.topology)
        ends = np.concatenate((self._sources, self._targets))
        self._by_end = np.argsort(ends, kind="stable") % self._sources.size
        self._starts = np.searchsorted(np.sort(ends), np.arange(self.topology.size + 1))
        everything = np.arange(self._sources.size)
        empty = _Loads(
            np.zeros((self._axes, 2 * self._tables.half)),
            np.zeros((self._axes, self.topology.size)),
        )
        self.loads = self._changed(empty, everything, self.order, 1.0)

    def run(self, trials: int) -> Ints:
        """Try exchanges.

        Parameters
        ----------
        trials : int
            How many.

        Returns
        -------
        ndarray, shape (size,), dtype int64
            The improved order.
        """
        draw = np.random.Generator(np.random.PCG64(1))
        for trial in range(trials):
            pair = self._candidate(trial, draw)
            if pair is not None:
                self._try(*pair)
        return self.order

    def _try(self, p: int, q: int) -> bool:
        """Exchange the ranks of two positions if that is better."""
        touched = np.union1d(self._messages_of(p), self._messages_of(q))
        order = self.order.copy()
        order[[p, q]] = order[[q, p]]
        loads = self._changed(self.loads, touched, self.order, -1.0)
        loads = self._changed(loads, touched, order, 1.0)
        (seconds, spread), (before, spread_before) = loads.key(), self.loads.key()
        better = seconds < before * (1.0 - _TOLERANCE)
        equal = seconds <= before * (1.0 + _TOLERANCE * 1e-2)
        if better or (equal and spread < spread_before * (1.0 - _TOLERANCE)):
            self.order, self.loads = order, loads
            return True
        return False

    def _candidate(self, trial: int, draw: np.random.Generator) -> tuple[int, int] | None:
        """Give two positions whose exchange may relieve the busiest group."""
        axis = trial % self._axes
        group = self._tables.group_of_load(int(self.loads.busy[axis].argmax()))
        if group is None:
            p, q = draw.choice(self.topology.size, 2, replace=False).tolist()
            return p, q
        level, number = group
        row = self.topology.groups[level]
        inside = row[self.order] == number
        crossing = np.flatnonzero(
            (self._axis == axis) & (inside[self._sources] != inside[self._targets])
        )
        if not crossing.size:
            return None
        one = int(crossing[draw.integers(crossing.size)])
        near, far = int(self._sources[one]), int(self._targets[one])
        if draw.integers(2):
            near, far = far, near
        others = np.flatnonzero(row[self.order] == row[self.order[far]])
        others = others[others != far]
        if not others.size:
            return None
        return near, int(others[draw.integers(others.size)])

    def _messages_of(self, position: int) -> Ints:
        return self._by_end[self._starts[position] : self._starts[position + 1]]

    def _changed(self, loads: _Loads, some: Ints, order: Ints, sign: float) -> _Loads:
        """Add some messages to the loads, or take them away."""
        axis, nbytes = self._axis[some], self._nbytes[some] * sign
        out, into = order[self._sources[some]], order[self._targets[some]]
        tables, width = self._tables, 2 * self._tables.half
        keys, values = [], []
        over = np.zeros(some.size, dtype=np.int64)
        for row, slow in zip(tables.rows, tables.slow, strict=True):
            a, b = row[out], row[into]
            crosses = a != b
            over += ~crosses
            at, seconds = axis[crosses] * width, nbytes[crosses] * slow
            keys += [at + a[crosses], at + tables.half + b[crosses]]
            values += [seconds, seconds]
        waits = tables.latency[over]
        for n, (level, a, b, slow, latency_s) in enumerate(tables.pairs):
            row = self.topology.groups[level]
            here = over == tables.levels.index(level)
            for way, (x, y) in enumerate(((a, b), (b, a))):
                used = here & (row[out] == x) & (row[into] == y)
                waits[used] = latency_s
                keys.append(axis[used] * width + way * tables.half + tables.groups + n)
                values.append(nbytes[used] * slow)
        busy = loads.busy + np.bincount(
            np.concatenate(keys), np.concatenate(values), loads.busy.size
        ).reshape(loads.busy.shape)
        each = axis * self.topology.size + self._sources[some]
        added = np.bincount(each, waits * sign, loads.waits.size).reshape(loads.waits.shape)
        return _Loads(busy, loads.waits + added)


class _LinkTables:
    """Groups of all levels numbered through, with the rates of their links.

    Parameters
    ----------
    topology : Topology
        The machine, with known links.
    """

    def __init__(self, topology: Topology) -> None:
        self.levels = used_levels(topology)
        names = [topology.levels[level] for level in self.levels]
        counts = [topology.count(name) for name in names]
        self._firsts = np.concatenate(([0], np.cumsum(counts)))
        self.rows = [
            topology.groups[level].astype(np.int64) + first
            for level, first in zip(self.levels, self._firsts, strict=False)
        ]
        self.slow = [1.0 / rate(topology, name) for name in names]
        self.latency = np.array([topology.links[name].latency_s or 0.0 for name in names] + [0.0])
        self.pairs = [
            (
                topology.position(name), a, b,
                1.0 / ((link.bytes_per_s or 1.0) * (link.rails or 1)), link.latency_s or 0.0,
            )
            for (name, a, b), link in topology.exceptions.items()
        ]  # fmt: skip
        self.groups = int(self._firsts[-1])
        self.half = self.groups + len(self.pairs)

    def group_of_load(self, load: int) -> tuple[int, int] | None:
        """Give level and number of the group of a load; None: a single rank's.

        A rank's own bytes are the same wherever it stands.
        """
        load %= self.half
        if load >= self.groups:  # an exception: relieve its first group
            level, a, *_ = self.pairs[load - self.groups]
            return level, a
        at = int(np.searchsorted(self._firsts, load, side="right")) - 1
        if self.levels[at] == self.levels[-1]:
            return None
        return self.levels[at], load - int(self._firsts[at])


def exchange_groups(workload: Workload, shortlist: Shortlist) -> None:
    """Exchange what stands on groups with a link of their own, for that on others.

    Parameters
    ----------
    workload : Workload
        The messages; its machine has exceptions.
    shortlist : Shortlist
        The order to begin with is its best; gets the ones that were tried.
    """
    topology = workload.topology
    order = shortlist.best()
    least = workload.cost(workload.mesh(order)).seconds
    for _ in range(_PASSES):
        before = least
        for mine, other in _alike(topology):
            places = np.arange(topology.size)
            places[mine], places[other] = other, mine
            cost = shortlist.propose(places[order])
            if cost.seconds < least * (1.0 - _TOLERANCE):
                order, least = places[order], cost.seconds
        if least == before:
            break


def _alike(topology: Topology) -> list[tuple[Ints, Ints]]:
    """Give pairs of groups of one size, the first of them with an exception."""
    ranks = depth_first(topology)
    pairs = []
    for name, group in sorted({(name, one) for name, *pair in topology.exceptions for one in pair}):
        row = topology.groups[topology.position(name)][ranks]
        mine = ranks[row == group]
        others = np.flatnonzero(topology.sizes(name) == mine.size).tolist()
        pairs += [(mine, ranks[row == other]) for other in others if other != group]
    return pairs[:: max(1, len(pairs) // _MOST_PAIRS)]
