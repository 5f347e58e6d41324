"""Where a save that is restored comes from: slots in memory, or files.

Whoever hands it out asks for descriptions and for bytes of the data of old
ranks, and does not know which of them it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from closeranks.checkpoint.erasure.gf256 import Bytes
from closeranks.checkpoint.restore.fetch import Want, fetch, of_extent
from closeranks.checkpoint.restore.recovery_search import Recovery
from closeranks.checkpoint.state import rank_image
from closeranks.checkpoint.state.device_staging import Anywhere
from closeranks.checkpoint.state.rank_image import Description
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import Talk


class Unreadable(CheckpointError):
    """Raised on all ranks when a save is damaged: an older one may do."""


class Wanted(NamedTuple):
    """Bytes of what an old rank has kept.

    Attributes
    ----------
    rank : int
        Which one.
    at : int
        Where they start in its data.
    target : ndarray of uint8, or Distant
        Where they go; as many as there is room.
    """

    rank: int
    at: int
    target: Anywhere


class Source(Protocol):
    """A save that can be read.

    Attributes
    ----------
    world : int
        Ranks that saved.
    """

    @property
    def world(self) -> int:
        """Ranks that saved."""

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks that have a slice each of what is alike.  Local."""

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give what old ranks have kept.  Collective."""

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""


class Slots:
    """A save in slots.

    Parameters
    ----------
    recovery : Recovery
        The save, whole.
    talk : Talk
        Between the ranks.
    """

    def __init__(self, recovery: Recovery, talk: Talk) -> None:
        self._recovery, self._talk = recovery, talk

    @property
    def world(self) -> int:
        """Ranks that saved."""
        return self._recovery.save.header.world

    def members(self, rank: int) -> tuple[int, ...]:
        """Give the ranks of its group.  Local."""
        return self._recovery.save.layout_of(rank).everybody

    def heads(self, ranks: Iterable[int]) -> dict[int, Description]:
        """Give what old ranks have kept.  Collective."""
        heads: dict[int, Bytes] = {}
        wants: list[Want] = []
        for rank in ranks:
            layout = self._recovery.save.layout_of(rank)
            heads[rank] = np.empty(layout.sizes[rank].head, np.uint8)
            wants += of_extent(layout, rank, 0, heads[rank])
        fetch(wants, self._talk, self._recovery.server, self._recovery.mapped)
        return self._talk.taken(
            "restore", lambda: {rank: rank_image.read(head) for rank, head in heads.items()}
        )

    def fetch(self, wants: Sequence[Wanted]) -> None:
        """Get bytes of old ranks.  Collective."""
        found: list[Want] = []
        for rank, at, target in wants:
            layout = self._recovery.save.layout_of(rank)
            found += of_extent(layout, rank, layout.head(rank) + at, target)
        fetch(found, self._talk, self._recovery.server, self._recovery.mapped)
