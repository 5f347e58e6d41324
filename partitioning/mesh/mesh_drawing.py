"""A mesh on the boxes of its machine: ranks of one coordinate have one colour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from closeranks.comms.topology.drawing import layout, save
from closeranks.comms.topology.topology import Topology

if TYPE_CHECKING:
    from closeranks.partitioning.mesh.mesh import Mesh

_COLOURS = ("#bcd9f5", "#f9d8a7", "#bfe5c8", "#e0c7f0", "#f5c4c4", "#c4eaea", "#e6e3a8", "#d9d9d9")


def draw_mesh(mesh: Mesh, topology: Topology, axis: str, path: str | Path) -> None:
    """Draw a mesh on the boxes of its machine.

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
    whole = layout(topology, topology.links, topology.devices)
    place = list(mesh.axes).index(axis)
    for box in whole.walk():
        if box.title.isdigit():
            at = mesh.coordinates(int(box.title))
            box.fill = _COLOURS[at[place] % len(_COLOURS)]
            box.title = f"{box.title}: {','.join(map(str, at))}"
    whole.measure()
    whole.place(16.0, 16.0)
    save(whole, path)
