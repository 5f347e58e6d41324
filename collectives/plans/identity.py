"""The name of an execution, the same on all its ranks."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """The name of an execution, equal on all its ranks.

    Attributes
    ----------
    epoch : int
        Epoch of the world.
    sequence : int
        Its number among the world's collectives, see `World.sequence`.
    """

    epoch: int
    sequence: int
