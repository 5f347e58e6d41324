"""Partitioning: which rank holds which part of an array, on which machine.

Packages in the order of import; each uses only those before it:

* `mesh`: ranks along named axes, and what a step on them costs.
* `layout`: which part of a global array each rank holds.
"""

from __future__ import annotations

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.volume import Volume

__all__ = ["Broadcast", "Layout", "Mesh", "MeshCost", "Partial", "Split", "Volume"]
