"""Exchange between devices of one node by CUDA IPC, through CuPy.

Every rank has an IPC memory in device memory that the others have opened.  It
has two halves that take turns.  An exchange has three steps: lay out data for
the others, meet, read.

Some work of a stream must not begin before another rank's stream has reached
a point.  The stream then waits for a mark, on the device.  The hosts meet only
to make sure that a mark has been set before a stream follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from closeranks.comms.gpu.device_array import IpcMemory, Runtime


#: cudaIpcMemLazyEnablePeerAccess, the only flag there is.
_LAZILY: Final = 1
_REMEDY: Final = "pass algorithm='auto'"


class CudaIpcMemory:
    """A `closeranks.comms.gpu.device_array.IpcMemory` of this process.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    nbytes : int
        Bytes of device memory; not from CuPy's pool, which splits its blocks.
    marks : int
        How many marks it has.
    device : int
        Where it lies.

    Raises
    ------
    Unavailable
        If the memory cannot be shared, as in some containers and on Windows.
    """

    def __init__(self, cuda: Any, nbytes: int, marks: int, device: int) -> None:
        self._cuda, self._calls, self._device = cuda, cuda.runtime, device
        with cuda.Device(device):
            try:
                self._memory = cuda.memory.Memory(nbytes)
                self._events = [
                    cuda.Event(disable_timing=True, interprocess=True) for _ in range(marks)
                ]
                places = [self._calls.ipcGetEventHandle(event.ptr) for event in self._events]
                self.handles = (
                    bytes(self._calls.ipcGetMemHandle(self._memory.ptr)), *map(bytes, places),
                )  # fmt: skip
            except (self._calls.CUDARuntimeError, MemoryError) as error:
                raise Unavailable(f"memory of device {device} for all ranks of the node: {error}",
                                  _REMEDY) from error  # fmt: skip
        self.pointer = int(self._memory.ptr)

    def mark(self, number: int, stream: int) -> None:
        """Set a mark at the present end of a stream."""
        with self._cuda.Device(self._device):
            self._calls.eventRecord(self._events[number].ptr, stream)

    def follow(self, number: int, stream: int) -> None:
        """Let a stream wait for a mark."""
        with self._cuda.Device(self._device):
            self._calls.streamWaitEvent(stream, self._events[number].ptr)

    def settle(self) -> None:
        """Let the host wait for all work of its device."""
        self._cuda.Device(self._device).synchronize()

    def close(self) -> None:
        """Free the memory."""
        self._memory, self._events = None, []


class OpenedIpcMemory:
    """An `IpcMemory` of another process of this node.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    handles : tuple of bytes
        The other's `CudaIpcMemory.handles`.
    device : int
        The device of this process.

    Raises
    ------
    Unavailable
        If this device cannot reach that memory.
    """

    def __init__(self, cuda: Any, handles: tuple[bytes, ...], device: int) -> None:
        self._cuda, self._calls, self._device = cuda, cuda.runtime, device
        self.handles = handles
        memory, *events = handles
        self.pointer, self._events = 0, []
        with cuda.Device(device):
            try:
                self.pointer = int(self._calls.ipcOpenMemHandle(memory, _LAZILY))
                for event in events:
                    self._events.append(self._calls.ipcOpenEventHandle(event))
            except self._calls.CUDARuntimeError as error:
                self.close()
                raise Unavailable(f"another rank's memory on device {device}: {error}",
                                  _REMEDY) from error  # fmt: skip

    def mark(self, number: int, stream: int) -> None:
        """Do nothing: only the owner sets marks."""
        raise AssertionError(f"mark {number} on stream {stream} is another rank's")

    def follow(self, number: int, stream: int) -> None:
        """Let a stream wait for a mark."""
        with self._cuda.Device(self._device):
            self._calls.streamWaitEvent(stream, self._events[number])

    def settle(self) -> None:
        """Let the host wait for all work of its device."""
        self._cuda.Device(self._device).synchronize()

    def close(self) -> None:
        """Close what was opened."""
        with self._cuda.Device(self._device):
            if self.pointer:
                self._calls.ipcCloseMemHandle(self.pointer)
            for event in self._events:
                self._calls.eventDestroy(event)
        self.pointer, self._events = 0, []


#: Bytes of half an IPC memory.
HALF_BYTES: Final = 16 << 20
#: Every rank combines vectors up to this many bytes for itself.
SHORT_BYTES: Final = 256 << 10
#: Marks of an IPC memory, two each: a half has been laid out, and this rank has read.
_LAID, _READ, MARKS = 0, 2, 4

_T = TypeVar("_T")
#: IPC memories that must not be freed any more.
_given_up: list[Sequence[IpcMemory]] = []
#: Source address, offset in the half, and bytes of a copy.
_Span = tuple[int, int, int]


class CudaIpcGroup:
    """A `closeranks.comms.gpu.device_array.DeviceGroup` over memory that is shared.

    Local to make.

    Parameters
    ----------
    runtime : Runtime
        Copies and combines.
    ipc_memories : sequence of IpcMemory
        IPC memories of all ranks, in rank order; other ranks' are opened ones.
    rank, device : int
        Rank and device of this member.
    meet : callable
        Returns when all ranks have called it; raises if they will not.
    is_lost : callable
        Whether the ranks have been given up: then no rank is waited for.
    half_bytes : int
        Bytes of half an IPC memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        ipc_memories: Sequence[IpcMemory],
        rank: int,
        device: int,
        meet: Callable[[], None],
        is_lost: Callable[[], bool],
        half_bytes: int,
    ) -> None:
        self._runtime, self._memories = runtime, ipc_memories
        self._rank, self._device = rank, device
        self._size, self._meet, self._half = len(ipc_memories), meet, half_bytes
        self._is_lost = is_lost
        self._turns = 0

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks for all."""
        size = np.dtype(dtype).itemsize
        for at, items in self._pieces(count, size):
            nbytes = items * size
            lay = [(source + at, 0, nbytes)]
            if self._size == 2 or nbytes <= SHORT_BYTES:
                places = self._exchange(lay, stream)
                self._combine(op, dtype, places, target + at, items, stream)
                self._read(stream)
                continue
            edges = [items * rank // self._size * size for rank in range(self._size + 1)]
            low, high = edges[self._rank], edges[self._rank + 1]
            places = [place + low for place in self._exchange(lay, stream)]
            self._combine(op, dtype, places, target + at + low, (high - low) // size, stream)
            self._read(stream)
            places = self._exchange([(target + at + low, low, high - low)], stream)
            for rank, place in self._others(places):
                first, nbytes = edges[rank], edges[rank + 1] - edges[rank]
                self._copy(target + at + first, place + first, nbytes, stream)
            self._read(stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        """Combine vectors of all ranks for one."""
        size = np.dtype(dtype).itemsize
        for at, items in self._pieces(count, size):
            places = self._exchange([(source + at, 0, items * size)], stream)
            if self._rank == root:
                self._combine(op, dtype, places, target + at, items, stream)
            self._read(stream)

    def bcast(self, place: int, nbytes: int, root: int, stream: int) -> None:
        """Send bytes of one rank to all."""
        for at, length in self._pieces(nbytes, 1):
            mine = self._rank == root
            places = self._exchange([(place + at, 0, length)] if mine else [], stream)
            if not mine:
                self._copy(place + at, places[root], length, stream)
            self._read(stream)

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        """Collect a block of bytes of every rank, on all."""
        own = target + self._rank * nbytes
        for at, length in self._pieces(nbytes, 1):
            places = self._exchange([(source + at, 0, length)], stream)
            if own != source:
                self._copy(own + at, source + at, length, stream)
            for rank, place in self._others(places):
                self._copy(target + rank * nbytes + at, place, length, stream)
            self._read(stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Combine vectors of all ranks; each gets its block of ``count`` elements."""
        size = np.dtype(dtype).itemsize
        for at, items in self._pieces(count, size, self._size):
            nbytes = items * size
            lay = [
                (source + rank * count * size + at, rank * nbytes, nbytes)
                for rank in range(self._size)
            ]
            places = [place + self._rank * nbytes for place in self._exchange(lay, stream)]
            self._combine(op, dtype, places, target + at, items, stream)
            self._read(stream)

    def close(self) -> None:
        """Leave the group after pending work; collective."""
        if self._is_lost():
            self.revoke()
            return
        own = self._memories[self._rank]
        with ExitStack() as steps:  # all of them, even if one fails; last first
            steps.callback(own.close)
            steps.callback(self._meet)  # now no rank has it open
            for _, ipc_memory in self._others(self._memories):
                steps.callback(ipc_memory.close)
            steps.callback(self._meet)  # now no rank reads any more
            own.settle()

    def revoke(self) -> None:
        """Give the group up; its memory goes with the process: others may still read it."""
        _given_up.append(self._memories)

    def _pieces(self, count: int, size: int, blocks: int = 1) -> Iterator[tuple[int, int]]:
        """Cut elements into pieces: bytes before each, and elements."""
        most = max(self._half // (size * blocks), 1)
        for first in range(0, count, most):
            yield first * size, min(most, count - first)

    def _exchange(self, spans: Sequence[_Span], stream: int) -> list[int]:
        """Lay out memory for the others; give where the halves of all ranks start.

        Work on the stream before `_read` finds their data there.
        """
        half = self._turns % 2
        self._turns += 1
        start, own = half * self._half, self._memories[self._rank]
        for ipc_memory in self._memories:
            ipc_memory.follow(_READ + half, stream)
        for place, offset, nbytes in spans:
            self._copy(own.pointer + start + offset, place, nbytes, stream)
        own.mark(_LAID + half, stream)
        self._meet()
        for _, ipc_memory in self._others(self._memories):
            ipc_memory.follow(_LAID + half, stream)
        return [ipc_memory.pointer + start for ipc_memory in self._memories]

    def _read(self, stream: int) -> None:
        """Note on the stream that this rank has read the halves of this turn."""
        self._memories[self._rank].mark(_READ + (self._turns - 1) % 2, stream)

    def _others(self, all_: Sequence[_T]) -> Iterator[tuple[int, _T]]:
        return ((rank, one) for rank, one in enumerate(all_) if rank != self._rank)

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        if nbytes:
            self._runtime.copy(target, source, nbytes, stream, self._device)

    def _combine(
        self, op: str, dtype: str, sources: list[int], target: int, count: int, stream: int
    ) -> None:
        if count:
            self._runtime.combine(op, dtype, sources, target, count, stream, self._device)
