"""Copying an extent into slots, and summing it up on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from closeranks.checkpoint.erasure.crc32c import Sums
from closeranks.checkpoint.erasure.gf256 import Bytes
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.stripe_layout import Layout, Piece, Share
from closeranks.checkpoint.state.device_staging import Arrivals, Distant
from closeranks.checkpoint.state.rank_image import Extent, Source

#: Bytes of entries that are put together first, and of what they are put together to.
_SMALL: Final = 128 << 10
_ROOM: Final = 1 << 20
#: Filling between entries.
_ZEROS: Bytes = np.zeros(1 << 16, np.uint8)
_ZEROS.flags.writeable = False


def write(extent: Extent, layout: Layout, rank: int, slots: Mapping[Share, Slot]) -> None:
    """Copy an extent to where it belongs: data first, then what describes them.

    Local; without the GIL but for some microseconds an entry.

    Parameters
    ----------
    extent : Extent
        Of this rank.
    layout : Layout
        Of its group.
    rank : int
        This rank.
    slots : mapping of Share to Slot
        Those that it has a part of, in state *writing*.
    """
    pieces = tuple(layout.pieces(rank))
    head, stop = layout.head(rank), layout.extent(rank)
    _put(pieces, slots, [Source(head + at, data) for at, data in extent.sources], head, stop)
    kept = {piece.share: slots[piece.share].data.kept for piece in pieces}
    sums = list(sums_of(layout, rank, kept, head, stop))
    _put(pieces, slots, [Source(0, extent.head(sums))], 0, head)


def sums_of(
    layout: Layout, rank: int, sums: Mapping[Share, Sums], start: int, stop: int
) -> Iterator[Sums]:
    """Give the check sums of part of an extent, in its order.

    Local.

    Parameters
    ----------
    layout : Layout
        Of the rank's group.
    rank : int
        Whose extent.
    sums : mapping of Share to ndarray of uint32
        Of the chunks of the data of shares.
    start, stop : int
        The part: whole chunks.

    Yields
    ------
    ndarray of uint32
        Those of a piece.
    """
    chunk = layout.chunk
    for piece in layout.pieces(rank):
        first, last = max(start, piece.start), min(stop, piece.start + piece.nbytes)
        if first < last:
            at = piece.at + first - piece.start
            yield sums[piece.share][at // chunk : (at + last - first) // chunk]


def _put(
    pieces: Sequence[Piece],
    slots: Mapping[Share, Slot],
    sources: Sequence[Source],
    start: int,
    stop: int,
) -> None:
    """Fill part of an extent: with sources, and with zeros where there are none."""
    arrivals = Arrivals(source.data for source in sources if isinstance(source.data, Distant))
    for at, data in _gathered(_arriving(_filled(sources, start, stop), arrivals)):
        for piece in pieces:
            first, last = max(at, piece.start), min(at + data.size, piece.start + piece.nbytes)
            if first < last:
                part = data[first - at : last - at]
                slots[piece.share].data.put(piece.at + first - piece.start, part)


def _filled(sources: Sequence[Source], start: int, stop: int) -> Iterator[Source]:
    """Give sources, and zeros for what is between them."""
    ends = accumulate((at + data.size for at, data in sources), max, initial=start)
    for end, (at, data) in zip(ends, (*sources, Source(stop, _ZEROS[:0])), strict=True):
        for place in range(end, at, len(_ZEROS)):
            yield Source(place, _ZEROS[: min(at - place, len(_ZEROS))])
        if data.size:
            yield Source(at, data)


def _arriving(sources: Iterator[Source], arrivals: Arrivals) -> Iterator[tuple[int, Bytes]]:
    """Give sources piece by piece, those on devices as they come."""
    for at, data in sources:
        for piece in arrivals.of(data):
            yield at, piece
            at += piece.size


def _gathered(sources: Iterator[tuple[int, Bytes]]) -> Iterator[tuple[int, Bytes]]:
    """Put small sources together that follow one another: each costs calls."""
    room, begin, filled = np.empty(_ROOM, np.uint8), 0, 0
    for at, data in sources:
        if filled and filled + data.size > (0 if data.size > _SMALL else _ROOM):
            yield begin, room[:filled]
            filled = 0
        if data.size > _SMALL:
            yield at, data
            continue
        begin = begin if filled else at
        room[filled : filled + data.size] = data
        filled += data.size
    if filled:
        yield begin, room[:filled]
