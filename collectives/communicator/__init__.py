"""The package collectives.communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

__all__ = ["Communicator"]


def __getattr__(name: str) -> object:
    """Import what the package shows when it is first asked for."""
    if name != "Communicator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from closeranks.collectives.communicator.communicator import Communicator

    return Communicator
