"""Copies between device arrays and pinned host memory, ordered by streams.

Each device has two streams of ours: one copies out, one copies back.  Both
directions and the host then work at the same time.  On the device, a copy
waits for earlier work of the caller's stream, and that stream waits for data
that are copied back.  The host waits only for data that it will read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from closeranks.comms.gpu.device_array import DeviceArray, Event, Room, Runtime

Bytes = NDArray[np.uint8]


class Span(NamedTuple):
    """Bytes copied between a device array and host memory.

    Attributes
    ----------
    there : int
        Where they start among the elements of the device array, packed.
    here : int
        Where they start in host memory.
    nbytes : int
        How many.
    """

    there: int
    here: int
    nbytes: int


class CopyStreams:
    """The two streams of ours on one device, and memory in use by them.

    Parameters
    ----------
    runtime : Runtime
        Drives the device.
    device : int
        Its number.
    """

    def __init__(self, runtime: Runtime, device: int) -> None:
        self.runtime, self.device = runtime, device
        self._out, self._back = runtime.stream(device), runtime.stream(device)
        self._used: deque[tuple[Event, object]] = deque()
        self._lock = threading.Lock()

    def read(
        self,
        array: DeviceArray,
        spans: Sequence[Span],
        out: Bytes,
        after: Event | None = None,
        *,
        row_major: bool = False,
    ) -> Event:
        """Start to copy from the device.

        Parameters
        ----------
        array : DeviceArray
            Read after all work of its stream.
        spans : sequence of Span
            Bytes to copy.
        out : ndarray of uint8
            Pinned memory; kept alive until it has been filled.
        after : Event, optional
            The last use of ``out`` before.
        row_major : bool
            Whether elements go in the order of their indices, even if the memory has
            another order.

        Returns
        -------
        Event
            Has happened when ``out`` may be read.
        """
        self._follow(self._out, array)
        if after is not None:
            self.runtime.hold(self._out, after, self.device)
        plain = array.row_major if row_major else array.contiguous
        room = None if plain else self._packed(array, self._out)
        start = array.pointer if room is None else room.pointer
        for there, here, nbytes in spans:
            self.runtime.copy(_address(out) + here, start + there, nbytes, self._out, self.device)
        return self._done(self._out, (out, room, array))

    def write(
        self, array: DeviceArray, spans: Sequence[Span], data: Bytes, *, row_major: bool = False
    ) -> Event:
        """Start to copy to the device.

        Parameters
        ----------
        array : DeviceArray
            Written after all work of its stream; see `lead`.
        spans : sequence of Span
            Bytes to copy.
        data : ndarray of uint8
            Pinned memory; kept alive until it has been read, not to be written
            before.
        row_major : bool
            As in `read`.

        Returns
        -------
        Event
            Has happened when the array holds the data.
        """
        self._follow(self._back, array)
        room = None
        if not (array.row_major if row_major else array.contiguous):
            whole = sum(span.nbytes for span in spans) == array.nbytes
            room = self._packed(array, self._back, empty=whole)
        start = array.pointer if room is None else room.pointer
        for there, here, nbytes in spans:
            self.runtime.copy(start + there, _address(data) + here, nbytes, self._back, self.device)
        if room is not None:
            self.runtime.scatter(room.pointer, array, self._back)
        array.landed = self._done(self._back, (data, room, array))
        return array.landed

    def lead(self, array: DeviceArray) -> None:
        """Let the next use of an array wait for its last write."""
        if array.landed is None:
            return
        if array.is_ordered:
            self.runtime.hold(array.stream, array.landed, self.device)
        else:
            array.settle()

    def release(self) -> None:
        """Release the memory of copies that have ended."""
        with self._lock:
            while self._used and self._used[0][0].done:
                self._used.popleft()

    def _follow(self, lane: int, array: DeviceArray) -> None:
        """Let one of our streams wait for the array's."""
        event = array.ready or self.runtime.record(array.stream, self.device)
        self.runtime.hold(lane, event, self.device)

    def _packed(self, array: DeviceArray, lane: int, *, empty: bool = False) -> Room:
        """Make a copy without gaps on the device, or room for one."""
        room = self.runtime.room(array.nbytes, self.device, lane)
        if not empty:
            self.runtime.gather(array, room.pointer, lane)
        return room

    def _done(self, lane: int, users: object) -> Event:
        """Mark the end of a copy, and keep alive what it uses."""
        event = self.runtime.record(lane, self.device)
        self.release()
        with self._lock:
            self._used.append((event, users))
        return event


_lanes: dict[tuple[int, int], CopyStreams] = {}
_making = threading.Lock()


def copy_streams(array: DeviceArray) -> CopyStreams:
    """Return the streams of ours on the device of an array; made once.  Local.

    Parameters
    ----------
    array : DeviceArray
        The array.

    Returns
    -------
    CopyStreams
        Of its device.
    """
    key = (id(array.runtime), array.device)
    with _making:
        found = _lanes.get(key)
        if found is None or found.runtime is not array.runtime:
            found = _lanes[key] = CopyStreams(array.runtime, array.device)
        return found


def fetch(
    array: DeviceArray, spans: Sequence[Span], out: Bytes, later: list[Event] | None = None
) -> None:
    """Copy from a device array; the host waits now or later.  Local.

    Parameters
    ----------
    array : DeviceArray
        Read after all work of its stream, see `DeviceArray.refresh`.
    spans : sequence of Span
        Bytes to copy.
    out : ndarray of uint8
        Pinned memory.
    later : list of Event, optional
        Takes events that must happen before ``out`` is read; None: wait now.
    """
    arrived = copy_streams(array).read(array, spans, out)
    if later is None:
        arrived.synchronize()
    else:
        later.append(arrived)


def put(array: DeviceArray, spans: Sequence[Span], data: Bytes) -> None:
    """Copy to a device array; the host does not wait, the caller's stream does.

    Local, by any thread.

    Parameters
    ----------
    array : DeviceArray
        Where to.
    spans : sequence of Span
        Bytes to copy.
    data : ndarray of uint8
        Pinned memory, not to be written again.
    """
    way = copy_streams(array)
    way.write(array, spans, data)
    way.lead(array)


def _address(data: Bytes) -> int:
    address: int = data.__array_interface__["data"][0]
    return address
