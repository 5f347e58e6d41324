"""A mesh on the boxes of its machine: ranks of one coordinate have one colour."""

from __future__ import annotations

from colorsys import hls_to_rgb
from pathlib import Path
from typing import TYPE_CHECKING, Final

from closeranks.comms.topology.drawing import Box, layout, save
from closeranks.comms.topology.topology import Topology

if TYPE_CHECKING:
    from closeranks.partitioning.mesh.mesh import Mesh

#: More coordinates share colours.
_MOST: Final = 12
_GAP: Final = 14.0


def draw_mesh(mesh: Mesh, topology: Topology, axis: str, path: str | Path) -> None:
    """Draw a mesh on the boxes of its machine; local.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    topology : Topology
        Its machine.
    axis : str
        Ranks with one coordinate along it have one colour.
    path : str or Path
        Ends with ``.svg`` or ``.png``.
    """
    save(stacked([coloured(mesh, topology, axis), legend(mesh, axis)]), path)


def coloured(mesh: Mesh, topology: Topology, axis: str) -> Box:
    """Give the boxes of a machine, each rank with its coordinates and colour.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    topology : Topology
        Its machine.
    axis : str
        Ranks with one coordinate along it have one colour.

    Returns
    -------
    Box
        Measured, not placed.
    """
    whole = layout(topology, topology.links, topology.devices)
    along = list(mesh.axes).index(axis)
    colours = _colours(mesh.axes[axis])
    for box in whole.walk():
        if box.title.isdigit():  # a rank
            at = mesh.coordinates(int(box.title))
            box.fill = colours[at[along] % len(colours)]
            box.title = f"{box.title}: {','.join(map(str, at))}"
    whole.measure()
    return whole


def legend(mesh: Mesh, axis: str) -> Box:
    """Give a box that says what the colours stand for.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    axis : str
        The coloured axis.

    Returns
    -------
    Box
        Measured, not placed.
    """
    sizes = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
    title = f"rank: coordinates on the mesh {sizes}; colour: {axis}"
    colours = _colours(mesh.axes[axis])
    chips = [Box(f"{axis} {n}", colour, "#4a5568") for n, colour in enumerate(colours)]
    if mesh.axes[axis] > _MOST:
        chips.append(Box(f"{axis} {_MOST} as {axis} 0 ...", "#ffffff", "#718096", dashed=True))
    box = Box(title, "#ffffff", "#cbd5e0", rows=[chips[k : k + 8] for k in range(0, len(chips), 8)])
    box.measure()
    return box


def stacked(boxes: list[Box]) -> Box:
    """Put measured boxes below each other.

    Parameters
    ----------
    boxes : list of Box
        At least one.

    Returns
    -------
    Box
        A white sheet around them, placed.
    """
    sheet = Box("", "#ffffff", "#ffffff", rows=[[box] for box in boxes])
    sheet.x, sheet.y, below = 16.0, 16.0, 16.0
    for box in boxes:
        box.place(16.0, below)
        below += box.height + _GAP
    sheet.width = max(box.width for box in boxes)
    sheet.height = below - _GAP - 16.0
    return sheet


def _colours(count: int) -> list[str]:
    """Give light colours that differ, evenly around the circle."""
    n = min(count, _MOST)
    triples = [hls_to_rgb((0.58 + k / n) % 1.0, 0.82, 0.65) for k in range(n)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in triples]
