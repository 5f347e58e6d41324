"""Getting bytes of slots to the ranks that want them, wherever they lie.

Bytes for a device come in rounds, so that they take little memory on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.checkpoint.state.device_staging import Anywhere, DeviceBytes, Filling

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


#: Bytes of one message at most.
_MESSAGE: Final = 1 << 30
#: Bytes for devices that come from other nodes in one round.
_ROUND: Final = 32 << 20
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
    target : ndarray of uint8, or DeviceBytes
        Where they go; as many as there is room.
    """

    share: Share
    at: int
    target: Anywhere


class _HostWant(NamedTuple):
    """A want with its target in memory of the host."""

    share: Share
    at: int
    target: Bytes


def of_extent(layout: StripeLayout, rank: int, start: int, target: Anywhere) -> Iterator[Want]:
    """Give a part of a rank's extent as parts of shares.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of the rank's group.
    rank : int
        Whose extent.
    start : int
        Where the part starts in it.
    target : ndarray of uint8, or DeviceBytes
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
    channel: ControlChannel,
    server: Callable[[Share], int],
    mapped: Callable[[Share], Slot | None],
) -> None:
    """Get bytes of slots.

    Collective; every rank may want something else.

    Parameters
    ----------
    wants : sequence of Want
        Of this rank.
    channel : ControlChannel
        Between the ranks.
    server : callable
        Gives the rank that has a share and sends what is in it; the same on all.
    mapped : callable
        Gives a slot of this rank's node, None of another one.

    Raises
    ------
    CheckpointError
        On all ranks, if one cannot map a slot, or write to its device.
    """

    def read(share: Share, at: int, nbytes: int) -> Bytes:
        slot = mapped(share)
        assert slot is not None
        return slot.data.memory[at : at + nbytes]

    def take() -> list[Want]:
        here = [want for want in wants if mapped(want.share) is not None]
        _put([(want.target, read(want.share, want.at, want.target.size)) for want in here])
        return [want for want in wants if mapped(want.share) is None]

    far = channel.taken("restore", take)  # mapping and devices may fail on one rank alone
    exchange(far, channel, server, read)


def exchange(
    wants: Sequence[Want],
    channel: ControlChannel,
    server: Callable[[Share], int],
    read: Callable[[Share, int, int], Bytes],
) -> None:
    """Get bytes that other ranks have.

    Collective; every rank may want something else.

    Parameters
    ----------
    wants : sequence of Want
        Of this rank.
    channel : ControlChannel
        Between the ranks.
    server : callable
        Gives the rank that sends what is in a share; the same on all.
    read : callable
        Gives bytes of a share that this rank serves: from where, and how many.

    Raises
    ------
    CheckpointError
        On all ranks, if one cannot write to its device.
    """
    lots = list(_lots(wants))
    plain = not any(isinstance(want.target, DeviceBytes) for want in wants)
    rounds, all_plain = channel.least([-len(lots), plain]).tolist()
    room = np.empty(0 if plain else _ROUND, np.uint8)
    for number in range(-rounds):
        lot = lots[number] if number < len(lots) else []
        landed = list(_landed(lot, room))
        _move(landed, channel, server, read)
        devices = [(want.target, at.target) for want, at in zip(lot, landed, strict=True)
                   if isinstance(want.target, DeviceBytes)]  # fmt: skip
        if all_plain != 1:
            channel.taken("restore", partial(_put, devices))


def _put(pairs: Sequence[tuple[Anywhere, Bytes]]) -> None:
    """Copy bytes that are here to where they are wanted."""
    filling = Filling()
    for target, data in pairs:
        filling.put(target, data)
    filling.end()


def _lots(wants: Sequence[Want]) -> Iterator[list[Want]]:
    """Give the wants of each round: all for the host first, then for devices."""
    first = [part for want in wants if not isinstance(want.target, DeviceBytes)
             for part in _parts(want, _MESSAGE)]  # fmt: skip
    if first:
        yield first
    lot, nbytes = list[Want](), 0
    for want in wants:
        for part in _parts(want, _ROUND) if isinstance(want.target, DeviceBytes) else ():
            if nbytes + part.target.size > _ROUND:
                yield lot
                lot, nbytes = [], 0
            lot.append(part)
            nbytes += part.target.size
    if lot:
        yield lot


def _parts(want: Want, most: int) -> Iterator[Want]:
    """Cut a want into parts of limited size."""
    for start in range(0, want.target.size, most):
        yield Want(want.share, want.at + start, want.target[start : start + most])


def _landed(lot: Sequence[Want], room: Bytes) -> Iterator[_HostWant]:
    """Say where on the host a lot arrives."""
    at = 0
    for share, start, target in lot:
        if isinstance(target, DeviceBytes):
            yield _HostWant(share, start, room[at : at + target.size])
            at += target.size
        else:
            yield _HostWant(share, start, target)


def _move(
    wants: Sequence[_HostWant],
    channel: ControlChannel,
    server: Callable[[Share], int],
    read: Callable[[Share, int, int], Bytes],
) -> None:
    """Let bytes travel between ranks.  Collective."""
    asked: dict[int, list[_HostWant]] = {}
    for want in wants:
        asked.setdefault(server(want.share), []).append(want)
    counts = np.zeros(channel.size, np.int64)
    for rank, lot in asked.items():
        counts[rank] = len(lot)
    tables = {
        rank: np.array([[*want.share, want.at, want.target.size] for want in lot], np.int64)
        for rank, lot in asked.items()
    }
    of_others = channel.across(counts)
    orders = {int(rank): np.empty((int(of_others[rank]), _WORDS), np.int64)
              for rank in np.flatnonzero(of_others)}  # fmt: skip
    channel.move(
        [(rank, _bytes(table)) for rank, table in sorted(tables.items())],
        [(rank, _bytes(table)) for rank, table in sorted(orders.items())],
    )()
    sends = [(rank, read(Share(*share), at, nbytes)) for rank, table in sorted(orders.items())
             for *share, at, nbytes in table.tolist()]  # fmt: skip
    receives = [(rank, want.target) for rank, lot in sorted(asked.items()) for want in lot]
    channel.move(sends, receives)()


def _bytes(table: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Bytes:
    """See a table as bytes."""
    return table.reshape(-1).view(np.uint8)
