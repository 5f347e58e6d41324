"""What crosses each level of a machine while the ranks of a mesh send.

A message from one rank to another leaves, at each level, the group of its
sender if its receiver is in another group: a message between two sites leaves
a site, a node and a rank.  It goes over the link of one level, the outermost
that separates the two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError
from closeranks.partitioning.mesh.volume import Volume

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Messages(NamedTuple):
    """Messages of one step.

    Attributes
    ----------
    sources, targets : ndarray, shape (n,), dtype int64
        Positions in the mesh, or ranks.
    nbytes : ndarray, shape (n,), dtype float64
        Bytes of each.
    """

    sources: Ints
    targets: Ints
    nbytes: Floats


@dataclass(frozen=True, eq=False)
class Traffic:
    """The load of one step on every group and rank.

    Parameters
    ----------
    sent : ndarray, shape (levels, size), dtype float64
        Bytes that each rank sends over the link of each level.
    leaving, entering : sequence of ndarray, shape (groups of the level,)
        Level -> bytes that leave and enter each of its groups.
    latency_s : ndarray, shape (size,), dtype float64
        Sum of the latencies of a rank's messages, seconds.
    pairs : ndarray, shape (exceptions,), dtype float64
        Bytes between each pair of groups with a link of its own, in the busier
        direction.
    """

    sent: Floats
    leaving: Sequence[Floats]
    entering: Sequence[Floats]
    latency_s: Floats
    pairs: Floats

    def seconds(self, topology: Topology) -> float:
        """Give the time of the step.

        Parameters
        ----------
        topology : Topology
            The machine, with known links.

        Returns
        -------
        float
            The largest over all groups and pairs of bytes over rate, plus the
            largest sum of latencies.
        """
        slowest = 0.0
        for name, out, into in zip(topology.levels, self.leaving, self.entering, strict=True):
            most = max(float(out.max()), float(into.max()))
            if most:
                slowest = max(slowest, most / rate(topology, name))
        for link, nbytes in zip(topology.exceptions.values(), self.pairs.tolist(), strict=True):
            if nbytes:
                assert link.bytes_per_s is not None  # check_links has seen it
                slowest = max(slowest, nbytes / (link.bytes_per_s * (link.rails or 1)))
        return slowest + float(self.latency_s.max())


def rate(topology: Topology, level: str) -> float:
    """Give what a group of a level sends in a second, all rails together.

    Parameters
    ----------
    topology : Topology
        The machine; unknown rails count as one.
    level : str
        One of its levels.

    Returns
    -------
    float
        Bytes/s.
    """
    link = topology.links[level]
    assert link.bytes_per_s is not None  # check_links has seen it
    return link.bytes_per_s * (link.rails or 1)


def check_links(where: str, topology: Topology) -> None:
    """Refuse a machine with a link of unknown speed.

    Parameters
    ----------
    where : str
        The call, for the text of an error.
    topology : Topology
        The machine.  The link of a level with a single group is never used.

    Raises
    ------
    TopologyError
        If latency or rate of a link that messages can use is None.
    """
    links = {f"level {name!r}": (name, link) for name, link in topology.links.items()}
    for (name, a, b), link in topology.exceptions.items():
        links[f"level {name!r} between {a} and {b}"] = (name, link)
    for told, (name, link) in links.items():
        unknown = [
            word
            for word, value in (("latency_s", link.latency_s), ("bytes_per_s", link.bytes_per_s))
            if value is None
        ]
        if unknown and topology.count(name) > 1:
            raise TopologyError(
                where,
                f"the link of {told} has no known {' and '.join(unknown)}",
                "measure it (closeranks topology --measure), or give it by with_links",
            )


def messages(shape: tuple[int, ...], axis: int, volume: Volume) -> Messages:
    """Give the messages along one axis of a mesh.

    Parameters
    ----------
    shape : tuple of int
        Sizes of all axes.
    axis : int
        Index of the axis.
    volume : Volume
        What each member sends along it.

    Returns
    -------
    Messages
        Between positions (row-major, the last axis fastest).
    """
    lines = _lines(shape, axis)
    n = lines.shape[1]
    steps: list[tuple[Ints, Ints]] = []
    if n == 1 or not volume.nbytes:
        steps.append((lines[:, :0], lines[:, :0]))
    elif volume.pattern == "line":
        steps += [(lines[:, :-1], lines[:, 1:]), (lines[:, 1:], lines[:, :-1])]
    elif volume.pattern == "all":
        steps += [(lines, np.roll(lines, -k, axis=1)) for k in range(1, n)]
    else:
        both = (1, -1) if volume.pattern == "torus" else (1,)
        steps += [(lines, np.roll(lines, -k, axis=1)) for k in both]
    sources = np.concatenate([source.reshape(-1) for source, _ in steps])
    targets = np.concatenate([target.reshape(-1) for _, target in steps])
    each = volume.nbytes / (n - 1) if volume.pattern == "all" and n > 1 else float(volume.nbytes)
    return Messages(sources, targets, np.full(sources.size, each))


def _lines(shape: tuple[int, ...], axis: int) -> Ints:
    """Give the positions of each line of members along an axis, one line a row."""
    positions = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
    return np.moveaxis(positions, axis, -1).reshape(-1, shape[axis])


def traffic_of(topology: Topology, sent: Messages) -> Traffic:
    """Add up what crosses each level.

    Parameters
    ----------
    topology : Topology
        The machine.
    sent : Messages
        Between its ranks.

    Returns
    -------
    Traffic
        Of that machine.
    """
    sources, targets, nbytes = sent
    size, depth = topology.size, len(topology.levels)
    over = np.zeros(sources.size, dtype=np.int64)
    leaving, entering = [], []
    for name, row in zip(topology.levels, topology.groups, strict=True):
        out, into = row[sources], row[targets]
        crosses = out != into
        over += ~crosses
        count = topology.count(name)
        leaving.append(_sums(out[crosses], nbytes[crosses], count))
        entering.append(_sums(into[crosses], nbytes[crosses], count))
    rows = _sums(over * size + sources, nbytes, (depth + 1) * size)
    latency = np.array([topology.links[name].latency_s or 0.0 for name in topology.levels] + [0.0])
    each = latency[over]
    pairs = np.zeros(len(topology.exceptions))
    for n, ((name, a, b), link) in enumerate(topology.exceptions.items()):
        forth, back = _between(topology, name, (a, b), sources, targets, over)
        each[forth | back] = link.latency_s or 0.0
        pairs[n] = max(float(nbytes[forth].sum()), float(nbytes[back].sum()))
    return Traffic(
        rows.reshape(depth + 1, size)[:depth],
        leaving,
        entering,
        _sums(sources, each, size),
        pairs,
    )


def _sums(keys: npt.NDArray[Any], values: Floats, count: int) -> Floats:
    """Add the values of each key of 0..count-1."""
    return np.bincount(keys, values, count).astype(np.float64, copy=False)


def _between(
    topology: Topology, name: str, pair: tuple[int, int], sources: Ints, targets: Ints, over: Ints
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Mark the messages from one group to another, and back, that its link carries."""
    a, b = pair
    level = topology.position(name)
    out, into = topology.groups[level][sources], topology.groups[level][targets]
    there = over == level
    return there & (out == a) & (into == b), there & (out == b) & (into == a)


def traffic_to_all(topology: Topology, lines: Ints, nbytes: float) -> Traffic:
    """Add up what crosses each level if each member of a line sends to all others.

    It counts the members of a line in each group, and looks at no single
    message: n members have n (n - 1) of them.

    Parameters
    ----------
    topology : Topology
        The machine.
    lines : ndarray, shape (lines, n), dtype int64
        Ranks of each line.
    nbytes : float
        Bytes that each rank sends in all.

    Returns
    -------
    Traffic
        As `traffic_of` would give.
    """
    n = lines.shape[1]
    size, depth = topology.size, len(topology.levels)
    each = nbytes / (n - 1)
    line = np.empty(size, dtype=np.int64)
    line[lines.reshape(-1)] = np.repeat(np.arange(len(lines)), n)
    leaving = []
    sent = np.zeros((depth, size))
    latency_s = np.zeros(size)
    near = np.full(size, n, dtype=np.int64)  # members of the rank's line in its group
    for level, (name, row) in enumerate(zip(topology.levels, topology.groups, strict=True)):
        inside = _members_beside(line, row)
        leaving.append(_sums(row, each * (n - inside), topology.count(name)))
        over = near - inside
        sent[level] = each * over
        latency_s += over * (topology.links[name].latency_s or 0.0)
        near = inside
    pairs = np.zeros(len(topology.exceptions))
    for k, ((name, a, b), link) in enumerate(topology.exceptions.items()):
        pairs[k], more = _exception_to_all(topology, (name, a, b), line, each)
        usual = topology.links[name].latency_s or 0.0
        latency_s += more * ((link.latency_s or 0.0) - usual)
    return Traffic(sent, leaving, leaving, latency_s, pairs)


def _members_beside(line: Ints, row: npt.NDArray[np.int32]) -> Ints:
    """Give for each rank how many ranks of its line are in its group, itself too."""
    key = line * (int(row.max()) + 1) + row
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    found: Ints = counts[inverse.reshape(-1)]
    return found


def _exception_to_all(
    topology: Topology, pair: tuple[str, int, int], line: Ints, each: float
) -> tuple[float, Ints]:
    """Give bytes one way between two groups, and messages over their link."""
    name, a, b = pair
    level = topology.position(name)
    row = topology.groups[level]
    used = not level or len(np.unique(topology.groups[level - 1][(row == a) | (row == b)])) == 1
    messages_of = np.zeros(len(line), dtype=np.int64)
    if not used:  # another level outside separates the two groups
        return 0.0, messages_of
    most = int(line.max()) + 1
    in_a, in_b = (np.bincount(line[row == group], minlength=most) for group in (a, b))
    messages_of[row == a] = in_b[line[row == a]]
    messages_of[row == b] = in_a[line[row == b]]
    return each * float((in_a * in_b).sum()), messages_of


def axis_traffic(
    topology: Topology, ranks: npt.NDArray[np.int64], axis: int, volume: Volume
) -> Traffic:
    """Add up what one axis of a mesh sends over each level.

    Parameters
    ----------
    topology : Topology
        The machine.
    ranks : ndarray of int64
        Rank at each position of the mesh.
    axis : int
        Index of the axis.
    volume : Volume
        What each member sends along it.

    Returns
    -------
    Traffic
        Of that machine.
    """
    if volume.pattern == "all" and ranks.shape[axis] > 2 and volume.nbytes:
        lines = np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis])
        return traffic_to_all(topology, lines, float(volume.nbytes))
    sources, targets, nbytes = messages(ranks.shape, axis, volume)
    order = ranks.reshape(-1)
    return traffic_of(topology, Messages(order[sources], order[targets], nbytes))
