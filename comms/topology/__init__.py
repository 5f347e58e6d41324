"""The package comms.topology."""

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
