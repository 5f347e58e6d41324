"""Arrays in device memory, and the protocols of a runtime that drives it.

`closeranks.comms.gpu.array_interface` recognises such arrays,
`closeranks.comms.gpu.pinned_staging` copies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

#: CUDA's default stream, which waits for every blocking stream.
DEFAULT_STREAM = 1
#: CUDA's default stream of the calling thread.
_THREAD_STREAM = 2


class Event(Protocol):
    """A point in a stream: all work put there before."""

    @property
    def done(self) -> bool:
        """Whether the device has got there; never blocks."""

    def synchronize(self) -> None:
        """Let the host wait until the device has got there."""


class Room(NamedTuple):
    """New memory on a device.

    Attributes
    ----------
    pointer : int
        Where it starts.
    owner : object
        Keeps it alive.
    """

    pointer: int
    owner: object


class IpcMemory(Protocol):
    """Device memory that other processes of the node open, with marks in streams.

    A stream passes a mark that was never set at once.  If a mark is set again,
    streams that follow it already are not affected.
    """

    @property
    def pointer(self) -> int:
        """Where it starts, for this process."""

    @property
    def handles(self) -> tuple[bytes, ...]:
        """Handles by which another process opens it."""

    def mark(self, number: int, stream: int) -> None:
        """Set a mark at the present end of a stream; only its owner may."""

    def follow(self, number: int, stream: int) -> None:
        """Let a stream wait for a mark; the host does not wait."""

    def settle(self) -> None:
        """Let the host wait for all work of its device."""

    def close(self) -> None:
        """Free the memory, or close what was opened."""


class DeviceGroup(Protocol):
    """Ranks with devices that exchange data on streams: NCCL, CUDA IPC.

    Counts are elements; types and ops are named, "float32" and "SUM"; the op
    "MEAN" divides by the number of ranks.  Every rank calls in the same order.
    """

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks for all."""

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        """Combine vectors of all ranks for one; the others' targets are not used."""

    def bcast(self, place: int, nbytes: int, root: int, stream: int) -> None:
        """Send bytes of one rank to all."""

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Collect a block of bytes of every rank, on all."""

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks; each gets its block of ``count`` elements."""

    def close(self) -> None:
        """Leave the group after pending work."""

    def revoke(self) -> None:
        """Give the group up, with pending work."""


class Runtime(Protocol):
    """The interface of a runtime that drives devices.

    Streams are handles, addresses are numbers; nothing but `pinned`, `group` and
    `Event.synchronize` may wait for a device.
    """

    def device_of(self, pointer: int) -> int | None:
        """Tell on which device memory lies, None if it is none of this runtime's."""

    def stream_of(self, buffer: object, device: int) -> int | None:
        """Give the stream on which the maker of an array works now, None if unknown."""

    def stream(self, device: int) -> int:
        """Make a stream that does not wait for the default one."""

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Make host memory that devices copy from and to by themselves."""

    def room(self, nbytes: int, device: int, stream: int) -> Room:
        """Make device memory for work on one stream."""

    def record(self, stream: int, device: int) -> Event:
        """Mark the present end of a stream."""

    def hold(self, stream: int, event: Event, device: int) -> None:
        """Let a stream wait for an event; the host does not wait."""

    def copy(self, target: int, source: int, nbytes: int, stream: int, device: int) -> None:
        """Copy bytes on a stream, either side on the host or the device."""

    def gather(self, array: DeviceArray, target: int, stream: int) -> None:
        """Copy an array with gaps side by side to device memory, on a stream."""

    def scatter(self, source: int, array: DeviceArray, stream: int) -> None:
        """Copy packed device memory to an array with gaps, on a stream."""

    def name_of(self, device: int) -> str:
        """Give a name of a device that is unique in its node."""

    def lacks_groups(self) -> str:
        """Say why there can be no `DeviceGroup`; "" where there can be."""

    def group_id(self) -> object:
        """Make the identity of a new group; one rank, for all."""

    def group(self, identity: object, rank: int, size: int, device: int) -> DeviceGroup:
        """Join a group; all its ranks call, and wait for each other."""

    def ipc_memory(self, nbytes: int, marks: int, device: int) -> IpcMemory:
        """Make an IPC memory; Unavailable where memory cannot be shared."""

    def opened(self, handles: tuple[bytes, ...], device: int) -> IpcMemory:
        """Open another process's IPC memory, or raise Unavailable."""

    def combine(
        self, op: str, dtype: str, sources: list[int], target: int, count: int, stream: int,
        device: int,
    ) -> None:  # fmt: skip
        """Combine vectors in their order, on a stream; "MEAN" divides by their number.

        The target may be the first of them, and shares no memory with the others.
        """

    def rows(self, count: int, nbytes: int, device: int, stream: int) -> Any:
        """Make an array of uint8, shape (count, nbytes), for the caller, on a stream.

        An array of the library that drives the device; rows begin at multiples of 16.
        """

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> Any:
        """Make an array for the caller, on a stream; rows lie side by side.

        An array of the library that drives the device; TypeError or ValueError if
        that has no such type.
        """

    def launch(
        self, source: str, name: str, groups: int, threads: int, arguments: tuple[int, ...],
        stream: int, device: int,
    ) -> None:  # fmt: skip
        """Run a function of a source in CUDA C on a stream, compiled once.

        Arguments are integers of 64 bits; addresses are, too.
        """


def array_interface(buffer: Any) -> dict[str, Any] | None:
    """Read the CUDA array interface of an object.  Local.

    Parameters
    ----------
    buffer : object
        Anything.

    Returns
    -------
    dict or None
        None where it has none, or none for its type: versions of PyTorch that
        have no name for bfloat16 raise a KeyError.

    Raises
    ------
    RuntimeError
        From a tensor that computes gradients: it does not export its memory.
    """
    try:
        found: dict[str, Any] | None = getattr(buffer, "__cuda_array_interface__", None)
    except KeyError:
        return None
    return found


@dataclass(slots=True)
class DeviceArray:
    """An array in device memory.

    Attributes
    ----------
    pointer : int
        Address of the element with all indices 0.
    shape, strides : tuple of int
        Strides in bytes.
    dtype : numpy.dtype
        The element.
    device : int
        On which device it lies.
    writable : bool
        Whether it may be written.
    owner : array
        The caller's; keeps the memory alive.
    runtime : Runtime
        Copies it.
    stream : int
        The stream that made its contents, and that uses it next.
    is_ordered : bool
        Whether ``stream`` is certain; else writes to the array must have ended
        before the caller goes on.
    landed : Event or None
        The end of the last write.
    ready : Event or None
        Copies wait for it, see `mark`; the present end of ``stream`` if None.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    writable: bool
    owner: Any
    runtime: Runtime
    stream: int = DEFAULT_STREAM
    is_ordered: bool = False
    landed: Event | None = None
    ready: Event | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the memory has no gaps, in either order of indices."""
        return self.row_major or self.strides == self._packed(reverse=True)

    @property
    def row_major(self) -> bool:
        """Whether the memory has no gaps, and the last index runs fastest."""
        return self.strides == self._packed()

    def refresh(self) -> None:
        """Ask on which stream the array is used now.  Local, by the caller's thread."""
        interface = array_interface(self.owner)
        stream = self.runtime.stream_of(self.owner, self.device)
        if stream is None:
            stream = (interface or {}).get("stream")
        self.stream = DEFAULT_STREAM if stream is None else int(stream)
        self.is_ordered = stream is not None
        if self.stream == _THREAD_STREAM:  # another stream in each thread
            event = self.runtime.record(self.stream, self.device)
            self.runtime.hold(DEFAULT_STREAM, event, self.device)
            self.stream, self.is_ordered = DEFAULT_STREAM, False
        elif stream is None and interface is None:  # DLPack alone: its maker sees to the stream
            self.owner.__dlpack__(stream=DEFAULT_STREAM)

    def mark(self) -> None:
        """Let later copies wait for work given to its stream until now, no more."""
        self.ready = self.runtime.record(self.stream, self.device)

    def settle(self) -> None:
        """Let the host wait for the last write."""
        landed, self.landed = self.landed, None
        if landed is not None:
            landed.synchronize()

    def _packed(self, *, reverse: bool = False) -> tuple[int, ...]:
        """Give the strides it would have without gaps; where a length is 1, its own."""
        found, step = list(self.strides), self.dtype.itemsize
        places = range(len(self.shape))
        for place in places if reverse else reversed(places):
            if self.shape[place] != 1:
                found[place] = step
            step *= self.shape[place]
        return tuple(found)
