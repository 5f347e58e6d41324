"""Getting bytes of slots to the ranks that want them, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.gf256 import Bytes
from closeranks.checkpoint.layout import Layout, Share
from closeranks.checkpoint.slots import Slot

if TYPE_CHECKING:
    from closeranks.checkpoint.talk import Talk

#: Bytes of one message at most.
_MESSAGE: Final = 1 << 30
#: Numbers that name a part: share, place, length.
_WORDS: Final = 5


class Want(NamedTuple):
    """Bytes of the data of a share.

    Attributes
    ----------
    share : Share
        Which.
    at : int
        Where they start in its data.
    target : ndarray of uint8
        Where they go; as many as there is room.
    """

    share: Share
    at: int
    target: Bytes


def of_extent(layout: Layout, rank: int, start: int, target: Bytes) -> Iterator[Want]:
    """Give what part of a rank's extent is, in terms of shares.

    Local.

    Parameters
    ----------
    layout : Layout
        Of the rank's group.
    rank : int
        Whose extent.
    start : int
        Where the part starts in it.
    target : ndarray of uint8
        Where it goes; as many bytes as there is room.

    Yields
    ------
    Want
        One for each share, or more.
    """
    stop = start + target.size
    for piece in layout.pieces(rank):
        first, last = max(start, piece.start), min(stop, piece.start + piece.nbytes)
        if first < last:
            at = piece.at + first - piece.start
            yield Want(piece.share, at, target[first - start : last - start])


def fetch(
    wants: Sequence[Want],
    talk: Talk,
    server: Callable[[Share], int],
    mapped: Callable[[Share], Slot | None],
) -> None:
    """Get bytes of slots.

    Collective; every rank may want something else.

    Parameters
    ----------
    wants : sequence of Want
        Of this rank.
    talk : Talk
        Between the ranks.
    server : callable
        Gives the rank that has a share and sends what is in it; the same on all.
    mapped : callable
        Gives a slot of this rank's node, None of another one.
    """

    def read(share: Share, at: int, nbytes: int) -> Bytes:
        slot = mapped(share)
        assert slot is not None
        return slot.data.memory[at : at + nbytes]

    far = []
    for want in wants:
        if mapped(want.share) is None:
            far.append(want)
        else:
            np.copyto(want.target, read(want.share, want.at, want.target.size))
    exchange(far, talk, server, read)


def exchange(
    wants: Sequence[Want],
    talk: Talk,
    server: Callable[[Share], int],
    read: Callable[[Share, int, int], Bytes],
) -> None:
    """Get bytes that other ranks have.

    Collective; every rank may want something else.

    Parameters
    ----------
    wants : sequence of Want
        Of this rank.
    talk : Talk
        Between the ranks.
    server : callable
        Gives the rank that sends what is in a share; the same on all.
    read : callable
        Gives bytes of a share that this rank serves: from where, and how many.
    """
    asked: dict[int, list[Want]] = {}
    for want in wants:
        for start in range(0, want.target.size, _MESSAGE):
            part = want.target[start : start + _MESSAGE]
            asked.setdefault(server(want.share), []).append(Want(want.share, want.at + start, part))
    counts = np.zeros(talk.size, np.int64)
    for rank, lot in asked.items():
        counts[rank] = len(lot)
    tables = {
        rank: np.array([[*want.share, want.at, want.target.size] for want in lot], np.int64)
        for rank, lot in asked.items()
    }
    of_others = talk.across(counts)
    orders = {int(rank): np.empty((int(of_others[rank]), _WORDS), np.int64)
              for rank in np.flatnonzero(of_others)}  # fmt: skip
    talk.move(
        [(rank, _bytes(table)) for rank, table in sorted(tables.items())],
        [(rank, _bytes(table)) for rank, table in sorted(orders.items())],
    )()
    sends = [(rank, read(Share(*share), at, nbytes)) for rank, table in sorted(orders.items())
             for *share, at, nbytes in table.tolist()]  # fmt: skip
    receives = [(rank, want.target) for rank, lot in sorted(asked.items()) for want in lot]
    talk.move(sends, receives)()


def _bytes(table: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Bytes:
    """See a table as bytes."""
    return table.reshape(-1).view(np.uint8)
