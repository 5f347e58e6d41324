"""What an execution is called."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """What an execution is called, equally on all its ranks.

    Attributes
    ----------
    epoch : int
        Epoch of the world.
    sequence : int
        Its number among the world's collectives, see `World.sequence`.
    """

    epoch: int
    sequence: int
