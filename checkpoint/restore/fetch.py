"""Carrying slots to other folders: at once, and never over what nobody gave up.

Removing slots that no job has use for.

Getting bytes of slots to the ranks that want them, wherever they lie.

What goes to a device comes in rounds, so that it takes little memory here.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.memory import slot_file, slot_locks
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.checkpoint.restore.slot_inventory import Holding, SlotNamedFile
from closeranks.checkpoint.state.device_staging import Anywhere, DeviceBytes, Filling
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.comms.shm.shared_folder import is_own_folder
from closeranks.errors import CheckpointError, Unavailable

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


#: Start of the names of folders to work in.
_SCRATCH: Final = ".closeranks-repair-"
#: How old they are when nobody works there any more, seconds.
_FORGOTTEN_S: Final = 86400.0


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """Have a folder to work in, of which nothing stays.

    Local.  If the process is killed it does, until a day later somebody works
    here.

    Parameters
    ----------
    place : Path
        Where it is made.

    Yields
    ------
    Path
        Of this user alone.
    """
    try:
        for old in place.glob(f"{_SCRATCH}*"):
            is_own = is_own_folder(old, _SCRATCH)
            if is_own and old.lstat().st_mtime < time.time() - _FORGOTTEN_S:
                shutil.rmtree(old, ignore_errors=True)
        work = Path(mkdtemp(prefix=_SCRATCH, dir=place))
    except OSError as error:
        raise Unavailable(
            f"{place}: {error.strerror}", "make it writable, or take another"
        ) from error
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a slot into a new file that has room for it.

    Local.

    Parameters
    ----------
    source : Path
        Of a file of this user's.
    target : Path
        Where nothing is.

    Raises
    ------
    Unavailable
        If there is no room.
    """
    with SharedFile.reading(source) as handle:
        nbytes = os.fstat(handle.fileno()).st_size
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(target, flags, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as made:
                os.posix_fallocate(descriptor, 0, nbytes)
                shutil.copyfileobj(handle, made, 1 << 20)
        except OSError as error:
            problem = f"{target}: {nbytes} bytes wanted, {error.strerror}"
            raise Unavailable(problem, "make room there, or name another folder") from error


def carry(source: Path, target: Path) -> None:
    """Put a slot in its place at once, and on the disk where there is one.

    Local.

    Parameters
    ----------
    source : Path
        Where it is; not any more, then.
    target : Path
        What has this name is replaced.

    Raises
    ------
    Unavailable
        If that is not possible; what was there stays.
    """
    near = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            source.rename(near)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            copy(source, near)
        with SharedFile.reading(near) as handle:
            os.fsync(handle.fileno())
        near.rename(target)
    except OSError as error:
        raise Unavailable(f"{target}: {error.strerror}", "look what is in the way") from error
    finally:
        with suppress(FileNotFoundError):
            near.unlink()


#: What a slot starts with; or it is new, or its header is being written.
_STARTS: Final = (b"clsrslot", bytes(8))


def remove(holding: Holding, places: Sequence[Path]) -> str:
    """Remove the slots of a save.

    Local.  Nobody can open them meanwhile; what has become another save since it
    was looked at stays, and so does what is no slot.

    Parameters
    ----------
    holding : Holding
        What is removed.
    places : sequence of Path
        The folders that it is in.

    Returns
    -------
    str
        Why something was kept; empty if nothing was.
    """
    with ExitStack() as stack:
        for place in places:
            if not stack.enter_context(slot_locks.removing(place, holding.name)):
                return "open in a process"
        problems = [_remove(one) for one in holding.files]
    return "; ".join(dict.fromkeys(filter(None, problems)))


def _remove(one: SlotNamedFile) -> str:
    """Remove a slot; gives why it was kept."""
    try:
        if one.header is None:
            with SharedFile.reading(one.path) as handle:
                start = handle.read(8)
            if start and not any(own.startswith(start) for own in _STARTS):
                return f"{one.path.name} is no slot"
        else:
            now = slot_file.look(one.path)
            if (now.run, now.age) != (one.header.run, one.header.age):
                return "overwritten meanwhile"
        one.path.unlink()
    except CheckpointError as error:
        return error.problem
    except Unavailable as error:
        return error.what
    except OSError as error:
        return f"{one.path}: {error.strerror}"
    return ""


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


class _Near(NamedTuple):
    """The same, in memory of the host."""

    share: Share
    at: int
    target: Bytes


def of_extent(layout: StripeLayout, rank: int, start: int, target: Anywhere) -> Iterator[Want]:
    """Give what part of a rank's extent is, in terms of shares.

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
    """Say what comes in which round: all for the host first, then parts for devices."""
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
    """Cut what is wanted."""
    for start in range(0, want.target.size, most):
        yield Want(want.share, want.at + start, want.target[start : start + most])


def _landed(lot: Sequence[Want], room: Bytes) -> Iterator[_Near]:
    """Say where on the host a lot arrives."""
    at = 0
    for share, start, target in lot:
        if isinstance(target, DeviceBytes):
            yield _Near(share, start, room[at : at + target.size])
            at += target.size
        else:
            yield _Near(share, start, target)


def _move(
    wants: Sequence[_Near],
    channel: ControlChannel,
    server: Callable[[Share], int],
    read: Callable[[Share, int, int], Bytes],
) -> None:
    """Let bytes travel between ranks.  Collective."""
    asked: dict[int, list[_Near]] = {}
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
