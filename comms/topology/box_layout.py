"""A topology laid out as nested boxes: groups, cards, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from closeranks.comms.topology.level_table import Grouping, child_groups
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_devices import Device, Devices
from closeranks.comms.topology.run_length import ranges

_CHARACTER = 6.4  # width of one at 11 px
_GAP, _PAD, _HEAD = 10.0, 12.0, 22.0
_CHIP_HEIGHT = 24.0
_MOST_SHOWN = 4  # alike siblings drawn before the rest is only counted
_FILLS = ("#eef3fb", "#fdf6e9", "#eef8f0", "#f6effa", "#fbeeee", "#eef8f8")
_STROKES = ("#3b6fb6", "#c98a1b", "#3f9a5a", "#8a55b0", "#b65050", "#3f9a9a")
_RANK = ("#ffffff", "#4a5568")
_GPU = ("#dff3e4", "#2f855a")
_NIC = ("#e2e8f5", "#4c51bf")


@dataclass
class Box:
    """A rectangle with a title, and what is inside it.

    Parameters
    ----------
    title : str
        Text at its top, or in its middle if nothing is inside.
    fill, stroke : str
        Colours.
    rows : list of list of Box
        Contents, laid out row by row.
    note : str, default ""
        Small text at the bottom: the link between its children.
    dashed : bool, default False
        Whether it stands for what was left out.
    """

    title: str
    fill: str
    stroke: str
    rows: list[list[Box]] = field(default_factory=list)
    note: str = ""
    dashed: bool = False
    x: float = field(default=0.0, init=False)
    y: float = field(default=0.0, init=False)
    width: float = field(default=0.0, init=False)
    height: float = field(default=0.0, init=False)

    def measure(self) -> None:
        """Compute width and height from the inside out."""
        text = max(len(self.title), len(self.note)) * _CHARACTER + 16
        rows = [row for row in self.rows if row]
        if not rows:
            self.width, self.height = max(text, 34.0), _CHIP_HEIGHT
            return
        for row in rows:
            for box in row:
                box.measure()
        inner = max(sum(b.width for b in row) + _GAP * (len(row) - 1) for row in rows)
        self.width = max(inner + 2 * _PAD, text)
        self.height = _HEAD + _PAD + (18.0 if self.note else 0.0)
        self.height += sum(max(b.height for b in row) for row in rows) + _GAP * (len(rows) - 1)

    def place(self, x: float, y: float) -> None:
        """Put the box and its contents, rows centred."""
        self.x, self.y = x, y
        below = y + _HEAD
        for row in self.rows:
            if not row:
                continue
            wide = sum(b.width for b in row) + _GAP * (len(row) - 1)
            left = x + (self.width - wide) / 2
            for box in row:
                box.place(left, below)
                left += box.width + _GAP
            below += max(b.height for b in row) + _GAP

    def walk(self) -> list[Box]:
        """Return this box and all inside, outer ones first."""
        return [self, *(deep for row in self.rows for box in row for deep in box.walk())]


def layout(grouping: Grouping, links: Mapping[str, Link], devices: Devices) -> Box:
    """Lay a topology out as nested boxes.

    Parameters
    ----------
    grouping : Grouping
        Levels and groups.
    links : mapping of str to Link
        Link per level, written into the box whose children it joins.
    devices : Devices
        Drawn inside their nodes.

    Returns
    -------
    Box
        The whole machine, placed; alike siblings beyond four are counted in
        a dashed box.
    """
    families = {name: child_groups(grouping, name) for name in grouping.levels}
    drawer = _Drawer(grouping, links, devices, families)
    first = grouping.levels[0]
    note = drawer.note(first, len(families[first][0]))
    whole = Box(f"{grouping.size} ranks", "#ffffff", "#2d3748", note=note)
    whole.rows = drawer.rows(0, families[first][0])
    whole.measure()
    whole.place(16.0, 16.0)
    return whole


class _Drawer:
    def __init__(
        self,
        grouping: Grouping,
        links: Mapping[str, Link],
        devices: Devices,
        families: Mapping[str, Sequence[Sequence[int]]],
    ) -> None:
        self._grouping = grouping
        self._links = links
        self._devices = devices
        self._families = families

    def note(self, level: str, number: int) -> str:
        """Describe the link between the children of a box."""
        return f"{level} to {level}: {self._links[level]}" if number > 1 else ""

    def rows(self, i: int, groups: Sequence[int]) -> list[list[Box]]:
        """Return the boxes of some sibling groups, in rows."""
        level = self._grouping.levels[i]
        most = 16 if level == "rank" else _MOST_SHOWN
        shown = groups if len(groups) <= most else groups[: most - 1]
        boxes = [self._box(i, group) for group in shown]
        left = groups[len(shown) :]
        if left:
            title = f"+ {len(left)} more: {level} {ranges(left, 3)}"
            boxes.append(Box(title, "#ffffff", "#718096", dashed=True))
        per_row = 8 if level == "rank" else 4 if i + 2 >= len(self._grouping.levels) else 2
        return [boxes[k : k + per_row] for k in range(0, len(boxes), per_row)]

    def _box(self, i: int, group: int) -> Box:
        level = self._grouping.levels[i]
        if level == "rank":
            return Box(str(group), *_RANK)
        inside = self._families[self._grouping.levels[i + 1]][group]
        colour = i % len(_FILLS)
        below = self._grouping.levels[i + 1]
        note = self.note(below, len(inside))
        box = Box(f"{level} {group}", _FILLS[colour], _STROKES[colour], note=note)
        box.rows = self.rows(i + 1, inside)
        if level == "node":
            cards = [_card(device) for device in self._devices.on(group)]
            box.rows += [cards[k : k + 4] for k in range(0, min(len(cards), 32), 4)]
        return box


def _card(device: Device) -> Box:
    rate = "" if device.bytes_per_s is None else f" {device.bytes_per_s / 1e9:.3g} GB/s"
    near = f" · {device.path} {device.near[0]}" if len(device.near) == 1 else ""
    return Box(f"{device.name}{rate}{near}", *(_GPU if device.kind == "gpu" else _NIC))
