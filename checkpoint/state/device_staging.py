"""Bytes of device arrays on their way, through two buffers of pinned memory.

While the host works on one buffer, the device fills or empties the other.  The
order of streams is that of `closeranks.comms.gpu.pinned_staging`; the host
waits for copies alone, and for no other work of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.comms.gpu.device_array import DeviceArray, Event
from closeranks.comms.gpu.pinned_staging import CopyStreams, Span, copy_streams

#: Bytes of a buffer: enough that a copy is as fast as a long one.
PIECE: Final = 4 << 20
#: Bytes to which places in a buffer are rounded up.
_ALIGNED: Final = 64


class DeviceBytes:
    """Bytes of an array in device memory, in the order of its indices.

    Parameters
    ----------
    array : DeviceArray
        Whose.
    start, stop : int, optional
        Which of its bytes; all if not given.

    Attributes
    ----------
    array : DeviceArray
        As given.
    start : int
        Where they start.
    size : int
        How many.
    """

    __slots__ = ("array", "size", "start")

    def __init__(self, array: DeviceArray, start: int = 0, stop: int | None = None) -> None:
        self.array, self.start = array, start
        self.size = (array.nbytes if stop is None else stop) - start

    def __getitem__(self, part: slice) -> DeviceBytes:
        """Give some of them, as of an array of bytes."""
        first, last, _ = part.indices(self.size)
        return DeviceBytes(self.array, self.start + first, self.start + max(first, last))

    def blocks(self) -> Iterator[tuple[DeviceArray, Span]]:
        """Give them in pieces that fit a buffer, with where they start among these bytes.

        Local.

        Yields
        ------
        block : DeviceArray
            Part of the array: in one piece, or of no more bytes than a buffer.
        span : Span
            Which of its bytes, and where they go.
        """
        begin, stop = 0, self.start + self.size
        for block in _cut(self.array):
            low, high = max(self.start, begin), min(stop, begin + block.nbytes)
            for first in range(low, high, PIECE):
                nbytes = min(PIECE, high - first)
                yield block, Span(first - begin, first - self.start, nbytes)
            begin += block.nbytes


#: Bytes of the caller's, on the host or on a device.
Anywhere: TypeAlias = Bytes | DeviceBytes


def bytes_of(array: NDArray[Any] | DeviceArray) -> Anywhere:
    """See an array as bytes, in the order of its indices.

    Local.

    Parameters
    ----------
    array : ndarray or DeviceArray
        Any; an array in several pieces on the host is copied.

    Returns
    -------
    ndarray of uint8, or DeviceBytes
        All of them.
    """
    if isinstance(array, DeviceArray):
        return DeviceBytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def memory_of(array: NDArray[Any] | DeviceArray) -> Anywhere | None:
    """See an array as bytes that can be written.

    Local.

    Parameters
    ----------
    array : ndarray or DeviceArray
        Any that may be written.

    Returns
    -------
    ndarray of uint8, DeviceBytes or None
        None where it lies on the host in several pieces: see `assign`.
    """
    if not isinstance(array, DeviceArray) and not array.flags.c_contiguous:
        return None
    return bytes_of(array)


def is_writable(array: NDArray[Any] | DeviceArray) -> bool:
    """Tell whether an array may be written.  Local."""
    return array.writable if isinstance(array, DeviceArray) else bool(array.flags.writeable)


def _cut(array: DeviceArray) -> Iterator[DeviceArray]:
    """Cut an array with gaps along its first indices, so that parts fit a buffer."""
    if array.row_major or array.nbytes <= PIECE:
        yield array
        return
    row = array.nbytes // array.shape[0]
    count = max(1, PIECE // row)
    for first in range(0, array.shape[0], count):
        part = within(array, (slice(first, min(first + count, array.shape[0])),))
        if row > PIECE:
            part = replace(part, shape=part.shape[1:], strides=part.strides[1:])
        yield from _cut(part)


def within(array: DeviceArray, where: tuple[slice, ...]) -> DeviceArray:
    """Give part of an array.

    Local.

    Parameters
    ----------
    array : DeviceArray
        Any.
    where : tuple of slice
        From where to where on the first axes, with steps of 1.

    Returns
    -------
    DeviceArray
        The same memory.
    """
    pointer, shape = array.pointer, list(array.shape)
    for axis, part in enumerate(where):
        first, last, _ = part.indices(shape[axis])
        pointer, shape[axis] = pointer + first * array.strides[axis], max(0, last - first)
    return replace(array, pointer=pointer, shape=tuple(shape))


class _Load(NamedTuple):
    """Pieces on their way to a buffer."""

    out: Bytes
    spans: list[tuple[int, int]]
    arrived: dict[CopyStreams, Event]

    def take(self) -> Iterator[Bytes]:
        """Wait for them, and give them one by one."""
        for event in self.arrived.values():
            event.synchronize()
        for here, nbytes in self.spans:
            yield self.out[here : here + nbytes]


class DeviceCopies:
    """Bytes that come from devices, a buffer ahead of the consumer.

    Parameters
    ----------
    parts : iterable of DeviceBytes
        All that will be taken, in that order.
    """

    def __init__(self, parts: Iterable[DeviceBytes]) -> None:
        self._pieces = _fetched(parts)

    def of(self, data: Anywhere) -> Iterator[Bytes]:
        """Give bytes as they come.

        Local, on any thread.

        Parameters
        ----------
        data : ndarray of uint8, or DeviceBytes
            The first, which lie here already, or the next of the parts.

        Yields
        ------
        ndarray of uint8
            Some of them, in their order, until the next are asked for.
        """
        if not isinstance(data, DeviceBytes):
            yield data
            return
        rest = data.size
        while rest:
            piece = next(self._pieces)
            yield piece
            rest -= piece.size


def _fetched(parts: Iterable[DeviceBytes]) -> Iterator[Bytes]:
    """Fetch parts; no piece is of two of them."""
    buffers: list[Bytes] = []
    used: set[CopyStreams] = set()
    ahead: _Load | None = None
    try:
        for turn, moves in enumerate(_packed(parts)):
            if turn < 2:
                buffers.append(moves[0][0].runtime.pinned(PIECE))
            load, ahead = ahead, _start(moves, buffers[turn % 2])
            used.update(ahead.arrived)
            if load is not None:
                yield from load.take()
        if ahead is not None:
            yield from ahead.take()
    finally:  # who has got all does not ask again
        for way in used:
            way.release()


def _packed(parts: Iterable[DeviceBytes]) -> Iterator[list[tuple[DeviceArray, Span]]]:
    """Put pieces together that fit a buffer, and say where in it they go."""
    moves: list[tuple[DeviceArray, Span]] = []
    end = 0
    for part in parts:
        for block, span in part.blocks():
            if end + span.nbytes > PIECE:
                yield moves
                moves, end = [], 0
            moves.append((block, span._replace(here=end)))
            end = _rounded(end + span.nbytes)
    if moves:
        yield moves


def _start(moves: list[tuple[DeviceArray, Span]], out: Bytes) -> _Load:
    """Let pieces travel to a buffer."""
    arrived: dict[CopyStreams, Event] = {}
    for block, span in moves:
        way = copy_streams(block)
        arrived[way] = way.read(block, [span], out, row_major=True)
    return _Load(out, [(span.here, span.nbytes) for _, span in moves], arrived)


class Filling:
    """Fills device arrays from the host, in the order of their streams."""

    def __init__(self) -> None:
        self._buffers: dict[int, Bytes] = {}
        self._turn, self._end = 0, PIECE
        #: What each buffer is needed for, and the arrays that were filled.
        self._busy: tuple[dict[CopyStreams, Event], dict[CopyStreams, Event]] = {}, {}
        self._arrays: dict[int, DeviceArray] = {}

    def put(self, target: Anywhere, data: Bytes) -> None:
        """Copy bytes from the host.

        Local.  They may be written again at once; see `end` for the array.

        Parameters
        ----------
        target : DeviceBytes, or ndarray of uint8
            Where to; the host's is as good as anything else.
        data : ndarray of uint8
            As many.
        """
        self.fill(target, lambda at, out: np.copyto(out, data[at : at + out.size]))

    def fill(self, target: Anywhere, read: Callable[[int, Bytes], None]) -> None:
        """Have a function write bytes, a buffer at a time.

        Local.  See `end` for the array.

        Parameters
        ----------
        target : DeviceBytes, or ndarray of uint8
            Where they go.
        read : callable
            Writes those that start at a place among them, as many as there is room.
        """
        if not isinstance(target, DeviceBytes):
            read(0, target)
            return
        for block, span in target.blocks():
            out, at = self._room(target.array, span.nbytes)
            read(span.here, out[at : at + span.nbytes])
            way = copy_streams(block)
            landed = way.write(block, [span._replace(here=at)], out, row_major=True)
            self._busy[self._turn][way] = target.array.landed = landed
        self._arrays[id(target.array)] = target.array

    def end(self) -> None:
        """Order the next use of arrays after the copies; give buffers back.

        Local.  Their streams wait for it; the host does for arrays that tell none.
        """
        self._buffers.clear()
        self._end = PIECE
        for array in self._arrays.values():
            copy_streams(array).lead(array)
            copy_streams(array).release()
        self._arrays.clear()

    def _room(self, array: DeviceArray, nbytes: int) -> tuple[Bytes, int]:
        """Find room in a buffer."""
        if self._end + nbytes > PIECE:
            self._turn, self._end = 1 - self._turn, 0
            for event in self._busy[self._turn].values():
                event.synchronize()
            self._busy[self._turn].clear()
            if self._turn not in self._buffers:
                self._buffers[self._turn] = array.runtime.pinned(PIECE)
        at, self._end = self._end, _rounded(self._end + nbytes)
        return self._buffers[self._turn], at


def assign(
    array: NDArray[Any] | DeviceArray, where: tuple[slice, ...], values: NDArray[Any]
) -> None:
    """Write part of an array.

    Local.

    Parameters
    ----------
    array : ndarray or DeviceArray
        Which.
    where : tuple of slice
        The part.
    values : ndarray
        Of its shape and type.
    """
    if isinstance(array, DeviceArray):
        filling = Filling()
        part = within(array, where)
        if part.nbytes:
            filling.put(DeviceBytes(part), np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        filling.end()
    else:
        array[where] = values


def _rounded(nbytes: int) -> int:
    """Round a place in a buffer up."""
    return -(-nbytes // _ALIGNED) * _ALIGNED
