"""Partitioning: which rank holds which part of an array, on which machine.

Packages in the order of import; each uses only those before it:

* `mesh`: ranks along named axes, and what a step on them costs.
* `layout`: which part of a global array each rank holds.
* `redistribution`: one layout turned into another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.volume import Volume
from closeranks.partitioning.redistribution.conversion_plan import Conversion, conversion

if TYPE_CHECKING:
    from closeranks.partitioning.redistribution.exchange import redistribute

__all__ = [
    "Broadcast", "Conversion", "Layout", "Mesh", "MeshCost", "Partial", "Split", "Volume",
    "conversion", "redistribute",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import what needs MPI when it is first asked for."""
    if name != "redistribute":
        raise AttributeError(f"module 'closeranks.partitioning' has no attribute {name!r}")
    from closeranks.partitioning.redistribution.exchange import redistribute

    globals()[name] = redistribute
    return redistribute
