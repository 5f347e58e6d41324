"""A topology as a tree for a terminal, equal siblings folded into one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.level_table import Grouping, first_ranks
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_devices import Device, Devices
from closeranks.comms.topology.run_length import ranges

_MOST_LINES = 200
_PLURALS = {"numa": "numa domains", "l3": "l3 caches", "switch": "switches"}


def render(
    grouping: Grouping,
    links: Mapping[str, Link],
    exceptions: Mapping[tuple[str, int, int], Link],
    devices: Devices,
) -> str:
    """Draw groups as a tree of text.

    Parameters
    ----------
    grouping : Grouping
        Levels and groups.
    links : mapping of str to Link
        Link per level.
    exceptions : mapping of (str, int, int) to Link
        Links between single pairs of groups.
    devices : Devices
        GPUs and network cards of the nodes.

    Returns
    -------
    str
        A headline, the tree, then links and devices; at most about 200
        lines.
    """
    numbers = {name: grouping.count(name) for name in grouping.levels[:-1]}
    counts = [f"{number} {_plural(name, number)}" for name, number in numbers.items()]
    size = grouping.size
    lines = [f"{size} {_plural('rank', size)}" + (f" ({', '.join(counts)})" if counts else "")]
    tree = _Tree(grouping)
    if len(grouping.levels) > 1:
        lines += tree.lines(0, [list(range(grouping.count(grouping.levels[0])))], "")
    if len(lines) > _MOST_LINES:
        left_out = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"... ({left_out} lines left out)"]
    lines += _link_lines(links, exceptions)
    lines += _device_lines(devices)
    return "\n".join(lines)


def _plural(name: str, number: int) -> str:
    if number == 1:
        return name
    return _PLURALS.get(name, f"{name}s")


class _Tree:
    """The children of every group, and which groups look alike."""

    def __init__(self, grouping: Grouping) -> None:
        self._levels = grouping.levels
        self._children = [
            _children(grouping.groups[i], grouping.groups[i + 1])
            for i in range(len(self._levels) - 1)
        ]
        self._shapes: list[Sequence[int]] = [[0] * grouping.size]
        for children in reversed(self._children):
            known: dict[tuple[int, ...], int] = {}
            below = self._shapes[0]
            shapes = [tuple(below[child] for child in group) for group in children]
            self._shapes.insert(0, [known.setdefault(shape, len(known)) for shape in shapes])

    def lines(self, i: int, families: Sequence[Sequence[int]], indent: str) -> Iterator[str]:
        """Yield lines for groups of level ``i``; all families look alike."""
        bunches = [
            [family[k] for family in families for k in positions]
            for positions in self._alike(i, families[0])
        ]
        for n, bunch in enumerate(bunches):
            last = n == len(bunches) - 1
            yield f"{indent}{'└─ ' if last else '├─ '}{self._describe(i, sorted(bunch))}"
            if i < len(self._levels) - 2:
                below = [self._children[i][group] for group in bunch]
                yield from self.lines(i + 1, below, indent + ("   " if last else "│  "))

    def _alike(self, i: int, family: Sequence[int]) -> Iterator[list[int]]:
        """Yield runs of positions in a family whose groups look alike."""
        shapes = self._shapes[i]
        for _, run in groupby(range(len(family)), key=lambda k: shapes[family[k]]):
            yield list(run)

    def _describe(self, i: int, bunch: Sequence[int]) -> str:
        below = self._levels[i + 1]
        children = self._children[i][bunch[0]]
        inside = f"{len(children)} {_plural(below, len(children))}"
        if below != "rank":
            return f"{self._levels[i]} {ranges(bunch)}: {inside}" + " each" * (len(bunch) > 1)
        members = ranges(children)
        if len(bunch) == 1:
            return f"{self._levels[i]} {bunch[0]}: {_plural('rank', len(children))} {members}"
        scattered = children[-1] - children[0] >= len(children)
        example = f" (the first has {members})" if scattered else ""
        return f"{self._levels[i]} {ranges(bunch)}: {inside} each{example}"


def _children(parent: npt.NDArray[np.int32], child: npt.NDArray[np.int32]) -> list[list[int]]:
    """Return for each parent group its child groups, in order."""
    children: list[list[int]] = [[] for _ in range(int(parent.max()) + 1)]
    for group, above in enumerate(parent[first_ranks(child)].tolist()):
        children[above].append(group)
    return children


def _link_lines(
    links: Mapping[str, Link], exceptions: Mapping[tuple[str, int, int], Link]
) -> Iterator[str]:
    for name, link in links.items():
        yield f"between {_plural(name, 2)}: {link} ({link.source})"
    for (name, a, b), link in list(exceptions.items())[:8]:
        yield f"  {name} {a} and {b}: {link} ({link.source})"
    if len(exceptions) > 8:
        yield f"  ... ({len(exceptions)} pairs with their own link)"


def _device_lines(devices: Devices) -> Iterator[str]:
    for number, table in enumerate(devices.tables):
        nodes = [node for node, mine in enumerate(devices.of_node) if mine == number]
        yield f"{_plural('node', len(nodes))} {ranges(nodes)}: " + (
            "; ".join(_device(device) for device in table) or "no devices"
        )


def _device(device: Device) -> str:
    rate = "" if device.bytes_per_s is None else f" {device.bytes_per_s / 1e9:.3g} GB/s"
    numa = "" if device.numa < 0 else f" numa {device.numa}"
    near = f" {device.path} {'+'.join(device.near)}" if device.near else ""
    return f"{device.name}{rate}{numa}{near}"
