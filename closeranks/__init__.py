"""Hierarchical collectives over a discovered topology, for MPI jobs.

``import closeranks as cr`` costs milliseconds: every name below is looked up
when it is first used.  Reading the version, catching an error or running the
command line starts neither MPI nor a compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from closeranks.errors import (
    CheckpointError,
    CodeError,
    Corrupted,
    Disagreement,
    Error,
    Incomplete,
    NotFound,
    PeerError,
    PeerLate,
    PeerLost,
    PlanError,
    Revoked,
    TooManyErasures,
    TopologyError,
    Unavailable,
    UsageError,
)

if TYPE_CHECKING:
    from closeranks import checkpoint, collectives, comms, partitioning
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.communicator.initialization import init
    from closeranks.collectives.reduction.op import MEAN
    from closeranks.comms.discovery.discovery import discover
    from closeranks.comms.topology.link import Link
    from closeranks.comms.topology.topology import Topology

__version__ = "0.1.0.dev0"

__all__ = [
    "MEAN",
    "CheckpointError",
    "CodeError",
    "Communicator",
    "Corrupted",
    "Disagreement",
    "Error",
    "Incomplete",
    "Link",
    "NotFound",
    "PeerError",
    "PeerLate",
    "PeerLost",
    "PlanError",
    "Revoked",
    "TooManyErasures",
    "Topology",
    "TopologyError",
    "Unavailable",
    "UsageError",
    "__version__",
    "checkpoint",
    "collectives",
    "comms",
    "discover",
    "init",
    "partitioning",
]

_ROOMS = ("comms", "collectives", "partitioning", "checkpoint")
_MODULES = {
    "Communicator": "closeranks.collectives.communicator.communicator",
    "init": "closeranks.collectives.communicator.initialization",
    "MEAN": "closeranks.collectives.reduction.op",
    "discover": "closeranks.comms.discovery.discovery",
    "Link": "closeranks.comms.topology.link",
    "Topology": "closeranks.comms.topology.topology",
}


def __getattr__(name: str) -> object:
    """Import what a public name stands for when it is first asked for."""
    if name in _ROOMS:
        return import_module(f"closeranks.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'closeranks' has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, whether they have been used or not."""
    return sorted({*globals(), *__all__})
