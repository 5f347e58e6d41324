"""Partitioning: which rank holds which part of an array, on which machine.

Packages in the order of import; each uses only those before it:

* `mesh`: ranks along named axes, and what a step on them costs.
* `layout`: which part of a global array each rank holds.
* `placement`: which rank stands where on a mesh, by the cost of its messages.
"""

from __future__ import annotations

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.placement.graph_search import place_graph
from closeranks.partitioning.placement.grid_search import cartesian
from closeranks.partitioning.placement.mesh_search import place
from closeranks.partitioning.placement.ranked import Placement

__all__ = [
    "Broadcast",
    "Layout",
    "Mesh",
    "MeshCost",
    "Partial",
    "Placement",
    "Split",
    "Volume",
    "cartesian",
    "place",
    "place_graph",
]
