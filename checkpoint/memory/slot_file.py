"""One slot: a file in node memory, outside of processes, that holds a share.

A slot has its header twice, check sums, data and parity::

    +----------+----------+------+-------------+--------+----------+
    | header 0 | header 1 | sums | parity sums | data   | parity   |
    +----------+----------+------+-------------+--------+----------+

The older of the two headers is overwritten, so one is always whole, from
before the slot has its name.  The life of a slot, and the state that its
header says::

    create --> writing --> written --> encoded --> committed
                 ^   copied      parity      all ranks     |
                 |   and summed  made        have it       |
                 +-- a later save takes the same place <---+
                     (one of ``keep`` places; others stay as they are)

A rank that dies leaves the state of its slots as it is: a restore judges by
them.  *writing* is no save yet; *written* has data without parity.

The check sums start from seeds of run, save and place: a chunk of another
place, or of another time, counts as damaged.  `write` copies the extent of a
rank into its slots, and sums it up on the way.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from closeranks.checkpoint.erasure.crc32c import Area, Sums, crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.slot_header import NAMED, WRITING, Header, Layouts, name_of
from closeranks.checkpoint.placement.stripe_layout import Piece, Share, StripeLayout
from closeranks.checkpoint.state.device_staging import DeviceBytes, DeviceCopies
from closeranks.checkpoint.state.rank_image import Extent, ImagePart
from closeranks.comms.shm.pages import large_page
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.comms.shm.shared_folder import ROOT, folder
from closeranks.errors import CheckpointError, Unavailable

#: Bytes of entries that are put together first, and of what they are put together to.
_SMALL: Final = 128 << 10
_ROOM: Final = 1 << 20
#: Filling between entries.
_ZEROS: Bytes = np.zeros(1 << 16, np.uint8)
_ZEROS.flags.writeable = False


def write(extent: Extent, layout: StripeLayout, rank: int, slots: Mapping[Share, Slot]) -> None:
    """Copy an extent into its slots: data first, then the description.

    Local; without the GIL but for some microseconds an entry.

    Parameters
    ----------
    extent : Extent
        Of this rank.
    layout : StripeLayout
        Of its group.
    rank : int
        This rank.
    slots : mapping of Share to Slot
        The slots that it has a part of, in state *writing*.
    """
    pieces = tuple(layout.pieces(rank))
    head, stop = layout.head(rank), layout.extent(rank)
    _put(pieces, slots, [ImagePart(head + at, data) for at, data in extent.sources], head, stop)
    kept = {piece.share: slots[piece.share].data.kept for piece in pieces}
    sums = list(sums_of(layout, rank, kept, head, stop))
    _put(pieces, slots, [ImagePart(0, extent.head(sums))], 0, head)


def sums_of(
    layout: StripeLayout, rank: int, sums: Mapping[Share, Sums], start: int, stop: int
) -> Iterator[Sums]:
    """Give the check sums of part of an extent, in its order.

    Local.

    Parameters
    ----------
    layout : StripeLayout
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
        The sums of a piece.
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
    sources: Sequence[ImagePart],
    start: int,
    stop: int,
) -> None:
    """Fill part of an extent: with sources, and with zeros where there are none."""
    arrivals = DeviceCopies(
        source.data for source in sources if isinstance(source.data, DeviceBytes)
    )
    for at, data in _gathered(_arriving(_filled(sources, start, stop), arrivals)):
        for piece in pieces:
            first, last = max(at, piece.start), min(at + data.size, piece.start + piece.nbytes)
            if first < last:
                part = data[first - at : last - at]
                slots[piece.share].data.put(piece.at + first - piece.start, part)


def _filled(sources: Sequence[ImagePart], start: int, stop: int) -> Iterator[ImagePart]:
    """Give sources, and zeros for the gaps between them."""
    ends = accumulate((at + data.size for at, data in sources), max, initial=start)
    for end, (at, data) in zip(ends, (*sources, ImagePart(stop, _ZEROS[:0])), strict=True):
        for place in range(end, at, len(_ZEROS)):
            yield ImagePart(place, _ZEROS[: min(at - place, len(_ZEROS))])
        if data.size:
            yield ImagePart(at, data)


def _arriving(sources: Iterator[ImagePart], arrivals: DeviceCopies) -> Iterator[tuple[int, Bytes]]:
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


#: Of what is in a slot; a newer one is refused.
FORMAT: Final = 1
_MAGIC: Final = b"clsrslot"
#: Magic, format, how often the header was written, bytes of JSON, room for a header, check sum.
_PROLOGUE: Final = struct.Struct("<8sIQQQI")
_PAGE: Final = 4096
#: Longest header that is read.
_MOST_HEADER: Final = 64 << 20


class Slot:
    """A slot, mapped.

    Made by `create` and `attach`.  Any process that maps it may write its
    data; the keeper of its share alone writes the header.

    Parameters
    ----------
    file : SharedFile
        All of it.
    header : Header
        Its newer header.
    room : int
        Bytes of each of its two headers.
    count : int
        How often its header was written.

    Attributes
    ----------
    header : Header
        As it was when last read or written here.
    data : Area
        Its data.
    room : ndarray of uint8
        The blocks of its data: bytes in no chunk are zero.
    parity : tuple of Area
        Its blocks of parity.
    """

    def __init__(self, file: SharedFile, header: Header, room: int, count: int) -> None:
        self.file, self.header, self._room, self._count = file, header, room, count
        self._name_areas()

    @classmethod
    def create(
        cls, header: Header, place: int, root: Path | None = None, *, bare: bool = False
    ) -> Slot:
        """Make a slot, in a state that says that nothing is in it.

        Local.

        Parameters
        ----------
        header : Header
            Its header.
        place : int
            Which of the share's slots it is.
        root : Path, optional
            The file system in memory; /dev/shm.
        bare : bool
            Only the headers have pages; the processes that map it `ask` for
            the others.

        Returns
        -------
        Slot
            Zeros.

        Raises
        ------
        Unavailable
            If node memory is full, or the folder cannot be trusted.
        """
        header = replace(header, state=WRITING)
        room = _PAGE * -(-(_PROLOGUE.size + 2 * len(header.encode())) // _PAGE)
        (path := path_of(header, place, root)).unlink(missing_ok=True)
        file = SharedFile.create(
            _places(header, room)[-1][1], root=root, name=path.name, whole=not bare,
            asked=2 * room if bare else None, front=bytes(room) + _packed(header, room, 1),
        )  # fmt: skip
        return cls(file, header, room, 1)

    @classmethod
    def attach(cls, path: Path, *, whole: bool = True, known: Header | None = None) -> Slot:
        """Map a slot that is there.

        Local.

        Parameters
        ----------
        path : Path
            Its name.
        whole : bool
            Map all pages at once, and not each when it is touched.
        known : Header, optional
            The header that was read before: if it is still there, nothing is
            decoded.

        Returns
        -------
        Slot
            With the newer one of its headers that are whole.

        Raises
        ------
        CheckpointError
            If no header is whole, or it is of another size than it says.
        Unavailable
            If it is not there, not ours, or no plain file.
        """
        (header, room, count), nbytes = _look(path, known=known)
        return cls(SharedFile.attach(path, nbytes, whole=whole), header, room, count)

    @property
    def path(self) -> Path:
        """Its name."""
        return self.file.path

    def ask(self, part: int, parts: int) -> None:
        """Ask for the pages of a part of all of it.

        Local.

        Parameters
        ----------
        part, parts : int
            Which part of how many, about equal.

        Raises
        ------
        Unavailable
            If node memory is full.
        """
        size, nbytes = large_page(), self.file.nbytes
        first, last = (-(-nbytes // size) * at // parts * size for at in (part, part + 1))
        self.file.ask(min(first, nbytes), min(last, nbytes))

    def fits(self, header: Header) -> bool:
        """Whether it may be used for other contents as it is, and others find it."""
        long = _PROLOGUE.size + len(header.encode()) > self._room
        mine, other = self.header.layout, header.layout
        same = self.header.share == header.share and self.file.is_named()
        return same and not long and _shape(mine, header.share) == _shape(other, header.share)

    def write(self, header: Header) -> None:
        """Write the header: over the older one, and that it is whole at the end of it.

        Local; for the keeper.

        Parameters
        ----------
        header : Header
            The new header.
        """
        if self._has(self._count + 1) or not self._has(self._count):
            self.reread()  # others have written it meanwhile
        self._count += 1
        start = self._count % 2 * self._room
        packed = np.frombuffer(_packed(header, self._room, self._count), np.uint8)
        memory = self.file.array[start : start + self._room]
        memory[: len(_MAGIC)] = 0  # what is there now is whole no longer
        memory[_PROLOGUE.size : packed.size] = packed[_PROLOGUE.size :]
        memory[: _PROLOGUE.size] = packed[: _PROLOGUE.size]
        self.following(header)
        with suppress(OSError):  # its time is not that of writes to mapped memory
            os.utime(self.path, follow_symlinks=False)

    def _has(self, count: int) -> bool:
        """Whether its header of that number is there, whole or not."""
        start = count % 2 * self._room
        magic, version, number, _, room, _ = _PROLOGUE.unpack_from(self.file.array.data, start)
        return (magic, version, number, room) == (_MAGIC, FORMAT, count, self._room)

    def _name_areas(self) -> None:
        """Find the parts, and the seeds of their check sums, from the header."""
        header, layout = self.header, self.header.layout
        whole, chunk, block = self.file.array, layout.chunk, layout.block
        places = _places(header, self._room)
        sums, parity_sums, self.room, parity = (whole[start:stop] for start, stop in places)
        whose = f"{header.run} {header.epoch} {header.generation} {tuple(header.share)}"
        filled, each = layout.filled(header.share), 4 * -(-block // chunk)
        own = sums.view(np.uint32)
        self.data = Area(self.room[:filled], own, chunk, crc32c(f"{whose} data".encode()))
        self.parity = tuple(
            Area(parity[number * block : (number + 1) * block],
                 parity_sums[number * each : (number + 1) * each].view(np.uint32),
                 chunk, crc32c(f"{whose} {number}".encode()))
            for number in range(layout.parity)
        )  # fmt: skip

    def following(self, header: Header) -> Slot:
        """Take over the header that the keeper has written; gives itself.  Local."""
        before, self.header = self.header, header
        if _contents(before) != _contents(header):
            self._name_areas()
        return self

    def reread(self) -> None:
        """Read the header again.

        Local.

        Raises
        ------
        CheckpointError
            If it says nothing.
        """
        memory = self.file.array
        self.header, self._room, self._count = _read(
            self.path, lambda nbytes, at: memory[at : at + nbytes].tobytes(), memory.size, None
        )
        self._name_areas()

    def remove(self) -> None:
        """Take its name away, and let go of it.  Local."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of it; the file stays.  Local."""
        del self.data, self.parity, self.room
        self.file.close()


def path_of(header: Header, place: int, root: Path | None = None) -> Path:
    """Give the name of a slot.

    Local.

    Parameters
    ----------
    header : Header
        Its header.
    place : int
        Which of the share's slots it is.
    root : Path, optional
        The file system in memory; /dev/shm.

    Returns
    -------
    Path
        In this user's folder, which is made if need be.
    """
    return folder(root or ROOT) / name_of(header, place)


def found(name: str, root: Path | None = None) -> Iterator[tuple[Path, int]]:
    """Give all slots of a name.  Local.

    Parameters
    ----------
    name : str
        Of the checkpoints.
    root : Path, optional
        The file system in memory; /dev/shm.

    Yields
    ------
    path : Path
        In no order, and not checked.
    epoch : int
        In which it was made.
    """
    for path in folder(root or ROOT).iterdir():
        parts = NAMED.fullmatch(path.name)
        if parts and parts[1] == name:
            yield path, int(parts[2], 16)


def look(path: Path, layouts: Layouts | None = None) -> Header:
    """Read the header of a slot, without mapping it.

    Local.

    Parameters
    ----------
    path : Path
        Its name.
    layouts : dict of bytes to StripeLayout, optional
        As of `Header.decode`.

    Returns
    -------
    Header
        The newer one that is whole.

    Raises
    ------
    CheckpointError
        If none is, or the file is of another size than it says.
    Unavailable
        If it is not there, not ours, or no plain file.
    """
    return _look(path, layouts=layouts)[0][0]


def still_says(path: Path, header: Header) -> bool:
    """Tell whether a slot has the header that was read of it before.

    Local; nothing is decoded.

    Parameters
    ----------
    path : Path
        Its name.
    header : Header
        The header that was read before.

    Returns
    -------
    bool
        False also where it is gone.
    """
    with suppress(Unavailable), SharedFile.reading(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        return _unchanged(partial(os.pread, handle.fileno()), size, header) is not None
    return False


def _look(
    path: Path, *, known: Header | None = None, layouts: Layouts | None = None
) -> tuple[tuple[Header, int, int], int]:
    """Read the newer header of a file, and its size; refuse another than it says."""
    with SharedFile.reading(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        read = partial(os.pread, handle.fileno())
        found = None if known is None else _unchanged(read, size, known)
        found = found or _read(path, read, size, layouts)
    wanted = _places(*found[:2])[-1][1]
    if wanted != size:
        problem = f"{path}: {size} bytes, its header says {wanted}"
        raise CheckpointError("restore", problem, "it is left out")
    return found, size


def _shape(layout: StripeLayout, share: Share) -> tuple[int, ...]:
    """Give the numbers that decide the lengths of a slot's parts, and its chunks."""
    filled = layout.filled(share)
    return layout.members, layout.parity, layout.block, layout.chunk, filled


def _places(header: Header, room: int) -> tuple[tuple[int, int], ...]:
    """Give where the parts of a slot lie."""
    layout, at = header.layout, 2 * room
    places = []
    chunks = -(-layout.filled(header.share) // layout.chunk)
    parity_chunks = layout.parity * -(-layout.block // layout.chunk)
    for nbytes in (4 * chunks, 4 * parity_chunks, layout.data_bytes, layout.parity_bytes):
        places.append((at, at + nbytes))
        at += -(-nbytes // _PAGE) * _PAGE
    return tuple(places)


def _contents(header: Header) -> tuple[object, ...]:
    """Give the part of a header that decides the places of a slot's parts, and seeds."""
    return header.run, header.epoch, header.generation, header.share, header.layout


def _packed(header: Header, room: int, count: int) -> bytes:
    """Give a header as it lies in a slot."""
    text = header.encode()
    front = _Front(FORMAT, count, len(text), room, 0)
    return _PROLOGUE.pack(_MAGIC, *front[:-1], _sum(front, text)) + text


class _Front(NamedTuple):
    """The numbers before the text of a header, after the magic."""

    version: int
    number: int
    length: int
    room: int
    total: int


def _sum(front: _Front, text: bytes) -> int:
    """Sum a header up."""
    return crc32c(struct.pack("<IQQQ", *front[:-1]) + text)


def _unchanged(
    read: Callable[[int, int], bytes], size: int, known: Header
) -> tuple[Header, int, int] | None:
    """Compare the newer header of a file with one that is known, byte by byte."""
    lots = [(front, at) for at in _starts(read, size) if (front := _front(read, at))]
    front, start = max(lots, key=_number, default=(None, 0))
    text = known.encode()
    if front is None or (front.version, front.length) != (FORMAT, len(text)):
        return None
    is_same = read(front.length, start + _PROLOGUE.size) == text
    return (known, front.room, front.number) if is_same else None


def _read(
    path: Path, read: Callable[[int, int], bytes], size: int, layouts: Layouts | None
) -> tuple[Header, int, int]:
    """Read the newer header that is whole; gives its room and its number too."""
    both = [(front, at) for at in _starts(read, size) if (front := _front(read, at))]
    for front, start in chain(sorted(both, key=_number, reverse=True), _anywhere(read, size)):
        text = read(front.length, start + _PROLOGUE.size)
        if _sum(front, text) != front.total:
            continue
        if front.version > FORMAT:  # else it is the number that is damaged
            problem = f"{path}: format {front.version}, newer than {FORMAT}"
            raise CheckpointError("restore", problem, "use the closeranks that wrote it")
        if start == front.number % 2 * front.room:
            return Header.decode(text, layouts), front.room, front.number
    raise CheckpointError("restore", f"{path}: no header is whole", "it is left out")


def _number(lot: tuple[_Front, int]) -> int:
    """Give how often a header was written."""
    return lot[0].number


def _front(read: Callable[[int, int], bytes], at: int) -> _Front | None:
    """Read the numbers before the text of a header; None if nothing does."""
    taken = read(_PROLOGUE.size, at)
    if len(taken) < _PROLOGUE.size or not taken.startswith(_MAGIC):
        return None
    front = _Front(*_PROLOGUE.unpack(taken)[1:])
    return front if max(front.length, front.room) <= _MOST_HEADER else None


def _starts(read: Callable[[int, int], bytes], size: int) -> list[int]:
    """Give where the two headers start, as far as the front of the first one says."""
    taken = read(_PROLOGUE.size, 0)
    room = _PROLOGUE.unpack(taken)[4] if len(taken) == _PROLOGUE.size else 0
    is_second = taken.startswith(_MAGIC) and 0 < room < min(size, _MOST_HEADER)
    return [0, room] if is_second else [0]


def _anywhere(read: Callable[[int, int], bytes], size: int) -> Iterator[tuple[_Front, int]]:
    """Give all that may be a second header, where the first one is damaged."""
    for at in range(_PAGE, min(size, 1 << 20), _PAGE):
        front = _front(read, at)
        if front is not None:
            yield front, at
