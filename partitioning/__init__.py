"""Partitioning: which rank holds which part of an array, on which machine.

Packages in the order of import; each uses only those before it:

* `mesh`: ranks along named axes, and what a step on them costs.
* `layout`: which part of a global array each rank holds.
* `halo`: ghost cells around each part; talks MPI.
"""

from __future__ import annotations

from importlib import import_module

from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.layout.placements import Broadcast, Partial, Split
from closeranks.partitioning.mesh.mesh import Mesh
from closeranks.partitioning.mesh.mesh_cost import MeshCost
from closeranks.partitioning.mesh.volume import Volume

__all__ = ["Broadcast", "Halo", "Layout", "Mesh", "MeshCost", "Partial", "Split", "Volume"]

#: Names whose modules import MPI, which starts it: imported when first asked for.
_TALKING = {"Halo": "closeranks.partitioning.halo.halo"}


def __getattr__(name: str) -> object:
    """Import what a public name stands for when it is first asked for."""
    if name not in _TALKING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_TALKING[name]), name)
    globals()[name] = value
    return value
