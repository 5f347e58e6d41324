"""Drawings of a topology: a text tree for a terminal, nested boxes for a file.

The tree folds equal siblings into one line.  The boxes show groups, cards and
links; SVG is written directly, PNG by matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.comms.topology.level_table import Grouping, child_groups, first_ranks
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology_json import ranges
from closeranks.errors import TopologyError, Unavailable

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
        """Yield runs of positions with groups that look alike."""
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
        Link per level, written into the box of the groups that it joins.
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


_DOTS = 100.0  # pixels of the drawing per inch


def save(whole: Box, path: str | Path) -> None:
    """Write a drawing.

    Parameters
    ----------
    whole : Box
        From `layout`.
    path : str or Path
        Ends with ``.svg`` or ``.png``.

    Raises
    ------
    TopologyError
        If it ends with anything else.
    Unavailable
        If PNG is asked for and matplotlib is not installed.
    """
    try:
        target = Path(path)
    except TypeError:
        problem = f"path is {argument.shown(path)}"
        raise TopologyError("draw", problem, "give a path that ends with .svg or .png") from None
    check_suffix(target)
    if target.suffix == ".svg":
        target.write_text(svg(whole), encoding="utf-8")
    else:
        _png(whole, target)


def check_suffix(path: Path) -> None:
    """Refuse a path of another file type; local.

    Parameters
    ----------
    path : Path
        Path of a drawing.

    Raises
    ------
    TopologyError
        If it ends with neither ``.svg`` nor ``.png``.
    """
    if path.suffix not in (".svg", ".png"):
        raise TopologyError("draw", f"{path.name!r} is no picture", "end it with .svg or .png")


def _png(whole: Box, target: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch
    except ImportError:
        remedy = "pip install closeranks[plot], or draw an .svg"
        raise Unavailable("PNG drawings (matplotlib)", remedy) from None
    width, height = whole.width + 32, whole.height + 32
    scale = min(1.0, 20000 / max(width, height))
    figure = Figure(figsize=(scale * width / _DOTS, scale * height / _DOTS), dpi=_DOTS * 1.5)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    points = 72 / _DOTS * scale
    for box in whole.walk():
        outline = FancyBboxPatch(
            (box.x, box.y),
            box.width,
            box.height,
            boxstyle=f"round,pad=0,rounding_size={8 if box.rows else 5}",
            facecolor=box.fill,
            edgecolor=box.stroke,
            linestyle="--" if box.dashed else "-",
        )
        axes.add_patch(outline)
        middle, top = box.x + box.width / 2, box.y + (15 if box.rows else 16)
        weight = "bold" if box.rows else "normal"
        axes.text(middle, top, box.title, ha="center", fontsize=11 * points, fontweight=weight)
        if box.note:
            bottom = box.y + box.height - 8
            axes.text(middle, bottom, box.note, ha="center", fontsize=10 * points, style="italic")
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png")


def svg(whole: Box) -> str:
    """Write placed boxes as SVG.

    Parameters
    ----------
    whole : Box
        From `layout`.

    Returns
    -------
    str
        A complete document without scripts or references.
    """
    width, height = whole.width + 32, whole.height + 32
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    lines = [head, '<rect width="100%" height="100%" fill="#ffffff"/>']
    for box in whole.walk():
        lines += _svg_box(box)
    return "\n".join([*lines, "</svg>", ""])


def _svg_box(box: Box) -> list[str]:
    dash = ' stroke-dasharray="4 3"' if box.dashed else ""
    radius = 8 if box.rows else 5
    outline = (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius}" fill="{box.fill}" stroke="{box.stroke}"{dash}/>'
    )
    made = [outline]
    middle = box.x + box.width / 2
    baseline = box.y + (15 if box.rows else 16)
    weight = ' font-weight="bold"' if box.rows else ""
    made.append(
        f'<text x="{middle:.1f}" y="{baseline:.1f}" font-size="11" text-anchor="middle" '
        f'fill="#1a202c"{weight}>{escape(box.title)}</text>'
    )
    if box.note:
        made.append(
            f'<text x="{middle:.1f}" y="{box.y + box.height - 8:.1f}" font-size="10" '
            f'font-style="italic" text-anchor="middle" fill="#4a5568">{escape(box.note)}</text>'
        )
    return made
