"""A placement as a picture: the mesh on its machine, and bars of its traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from closeranks.comms.topology.drawing import Box, save
from closeranks.errors import UsageError
from closeranks.jobs.plan.placement_rows import nbytes, seconds
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.mesh_drawing import coloured, legend, stacked
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.ranked import Placement

_LONGEST: Final = 320.0  # of a bar, in pixels
_HEIGHT: Final = 20.0
_CHARACTER: Final = 6.4
_SIDES: Final = (("chosen", "#3b6fb6"), ("default", "#c9ced6"))


def draw_placement(
    placement: Placement, volumes: Mapping[str, Volume], path: str | Path
) -> None:  # fmt: skip
    """Draw a placement; local.

    Parameters
    ----------
    placement : Placement
        Its mesh has a topology.
    volumes : mapping of str to Volume
        What each rank sends along the axes.  The colours are those of the axis
        that sends most.
    path : str or Path
        Ends with ``.svg``, or with ``.png`` where matplotlib is installed.
    """
    mesh = placement.mesh
    if mesh.topology is None:
        raise UsageError("draw", "the mesh has no topology", "place it on one")
    axis = heaviest(mesh.axes, volumes)
    boxes = [coloured(mesh, mesh.topology, axis), legend(mesh, axis), *_bars(placement)]
    save(stacked(boxes), path)


def heaviest(axes: Mapping[str, int], volumes: Mapping[str, Volume]) -> str:
    """Name the axis along which a rank sends most.

    Parameters
    ----------
    axes : mapping of str to int
        Name -> size.
    volumes : mapping of str to Volume
        What each rank sends along them.

    Returns
    -------
    str
        The first of those that send most.
    """

    def sent(axis: str) -> float:
        volume = volumes.get(axis)
        if volume is None or axes[axis] == 1:
            return 0.0
        twice = volume.pattern == "torus" or (volume.pattern == "line" and axes[axis] > 2)
        return volume.nbytes * (2 if twice else 1)

    return max(axes, key=sent)


def _bars(placement: Placement) -> list[Box]:
    """Give one box a level: what leaves its busiest group, chosen against default."""
    sides = {"chosen": placement.cost, "default": placement.default}
    times = ", ".join(f"{name} {seconds(cost.seconds)}" for name, cost in sides.items())
    heading = Box(f"a step: {times}", "#ffffff", "#ffffff")
    heading.measure()
    mesh = placement.mesh
    assert mesh.topology is not None
    levels = [name for name in mesh.topology.levels if mesh.topology.count(name) > 1]
    return [heading, *(_level(name, sides) for name in levels)]


def _level(name: str, sides: Mapping[str, MeshCost]) -> Box:
    """Give the two bars of a level, the longer of full length."""
    values = {side: cost.group_bytes_per_level[name] for side, cost in sides.items()}
    most = max(*values.values(), 1)
    box = _Bars(f"bytes that leave or enter the busiest {name}", "#ffffff", "#cbd5e0")
    for side, colour in _SIDES:
        bar = Box("", colour, colour)
        bar.width, bar.height = max(10.0, _LONGEST * values[side] / most), _HEIGHT
        label = Box(f"{side}: {nbytes(values[side])}", "#ffffff", "#ffffff")
        label.width, label.height = len(label.title) * _CHARACTER + 16, _HEIGHT
        box.rows.append([bar, label])
    box.width = max(_LONGEST + 190.0, len(box.title) * _CHARACTER + 16)
    box.height = 22.0 + 2 * (_HEIGHT + 6.0) + 6.0
    return box


class _Bars(Box):
    """A box whose rows begin at its left side."""

    def place(self, x: float, y: float) -> None:
        """Put the box and its bars."""
        self.x, self.y = x, y
        below = y + 24.0
        for bar, label in self.rows:
            bar.place(x + 12.0, below)
            label.place(x + 12.0 + bar.width + 4.0, below)
            below += _HEIGHT + 6.0
