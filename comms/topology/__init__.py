"""The hierarchy of a job as immutable data; nothing here reads the machine.

* `level_table`: the group number of each rank at every level.
* `link`: latency, bandwidth and rails of a level.
* `node_description`: hardware of a node, and device tables.
* `topology`: levels, links and devices in one object.
* `topology_json`: the JSON form of a topology and of a node.
* `drawing`: a topology as text, SVG or PNG.
* `level_communicators`: sub-communicators by level and by rail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology

__all__ = ["Topology"]


def __getattr__(name: str) -> object:
    """Import what the package shows when it is first asked for."""
    if name != "Topology":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from closeranks.comms.topology.topology import Topology

    return Topology
