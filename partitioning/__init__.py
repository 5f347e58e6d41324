"""Partitioning: which rank holds which part of an array, on which machine.

Packages in the order of import; each uses only those before it:

* `mesh`: ranks along named axes, and what a step on them costs.
* `layout`: which part of a global array each rank holds.
* `placement`: which rank stands where on a mesh, by the cost of its messages.
* `redistribution`: one layout turned into another.
* `halo`: ghost cells around each part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.graph_search import place_graph
from closeranks.partitioning.placement.grid_search import cartesian
from closeranks.partitioning.placement.mesh_search import place
from closeranks.partitioning.placement.ranked import Placement
from closeranks.partitioning.redistribution.conversion_plan import Conversion, conversion

if TYPE_CHECKING:
    from closeranks.partitioning.halo.halo import Halo
    from closeranks.partitioning.redistribution.exchange import redistribute

__all__ = [
    "Broadcast",
    "Conversion",
    "Halo",
    "Layout",
    "Mesh",
    "MeshCost",
    "Partial",
    "Placement",
    "Split",
    "Volume",
    "cartesian",
    "conversion",
    "place",
    "place_graph",
    "redistribute",
]


def __getattr__(name: str) -> object:
    """Import what starts MPI when it is first asked for."""
    if name == "Halo":
        value: object = import_module("closeranks.partitioning.halo.halo").Halo
    elif name == "redistribute":
        value = import_module("closeranks.partitioning.redistribution.exchange").redistribute
    else:
        raise AttributeError(f"module 'closeranks.partitioning' has no attribute {name!r}")
    globals()[name] = value
    return value
