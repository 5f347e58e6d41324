"""Memory of CUDA devices that other processes open: CUDA IPC, through CuPy."""

from __future__ import annotations

from typing import Any, Final

from closeranks.errors import Unavailable

#: cudaIpcMemLazyEnablePeerAccess, the only flag there is.
_LAZILY: Final = 1
_REMEDY: Final = "pass algorithm='auto'"


class CupyDesk:
    """A `closeranks.comms.gpu.device_array.Desk` of this process.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    nbytes : int
        Bytes of device memory, not of CuPy's pool, which shares its blocks out.
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
        """Let the host wait for all that its device has been given."""
        self._cuda.Device(self._device).synchronize()

    def close(self) -> None:
        """Free the memory."""
        self._memory, self._events = None, []


class OpenedDesk:
    """A `closeranks.comms.gpu.device_array.Desk` of another process of this node.

    Parameters
    ----------
    cuda : module
        ``cupy.cuda``.
    handles : tuple of bytes
        The other's `CupyDesk.handles`.
    device : int
        Where this process works.

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
        """Leave it: marks are the owner's."""
        raise AssertionError(f"mark {number} on stream {stream} is another rank's")

    def follow(self, number: int, stream: int) -> None:
        """Let a stream wait for a mark."""
        with self._cuda.Device(self._device):
            self._calls.streamWaitEvent(stream, self._events[number])

    def settle(self) -> None:
        """Let the host wait for all that its device has been given."""
        self._cuda.Device(self._device).synchronize()

    def close(self) -> None:
        """Close what was opened."""
        with self._cuda.Device(self._device):
            if self.pointer:
                self._calls.ipcCloseMemHandle(self.pointer)
            for event in self._events:
                self._calls.eventDestroy(event)
        self.pointer, self._events = 0, []
