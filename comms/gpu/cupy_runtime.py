"""CUDA devices, driven through CuPy; imported when an array of one is met."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.gpu.cuda_ipc import CudaIpcMemory, OpenedIpcMemory
from closeranks.comms.gpu.device_array import DEFAULT_STREAM, DeviceArray, Room
from closeranks.comms.gpu.nccl import NcclGroup, lacks
from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from closeranks.comms.gpu.device_array import DeviceGroup, Event, IpcMemory

#: Element size -> CuPy type for copies; other sizes are copied by bytes.
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

#: CuPy's functions of two arrays that do what an op does.
_FUNCTIONS = {
    "SUM": "add", "PROD": "multiply", "MIN": "minimum", "MAX": "maximum", "MEAN": "add",
}  # fmt: skip


@cache
def cupy_runtime() -> CupyRuntime:
    """Return this process's runtime of CUDA devices.

    Local.

    Returns
    -------
    CupyRuntime
        Always the same.

    Raises
    ------
    Unavailable
        If CuPy cannot be imported.
    """
    try:
        import cupy
    except ImportError as error:
        raise Unavailable(
            f"CuPy, which copies arrays of CUDA devices ({error})",
            "pip install 'closeranks[cuda]' ([cuda13] for CUDA 13), or copy the array to the host",
        ) from error
    return CupyRuntime(cupy)


class _Foreign:
    """A foreign stream, as the CUDA stream protocol describes it."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


class CupyRuntime:
    """A `closeranks.comms.gpu.device_array.Runtime` of CUDA devices.

    Parameters
    ----------
    cupy : module
        CuPy.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy, self._cuda = cupy, cupy.cuda
        self._calls = cupy.cuda.runtime
        self._streams: list[Any] = []
        self._foreign: dict[tuple[int, int], Any] = {}
        self._kernels: dict[str, Any] = {}

    def device_of(self, pointer: int) -> int:
        """Tell on which device memory lies."""
        return int(self._calls.pointerGetAttributes(pointer).device)

    def current(self) -> int:
        """Tell on which device this thread works."""
        return int(self._cuda.Device().id)

    def stream_of(self, buffer: object, device: int) -> int | None:
        """Give the current stream of CuPy or PyTorch for an array of theirs.

        The stream belongs to the array's device: CuPy's arrays name the one of the
        current device.  PyTorch is asked if the program has imported it.
        """
        if isinstance(buffer, self._cupy.ndarray):
            return int(self._cuda.get_current_stream(device).ptr) or DEFAULT_STREAM
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(buffer, torch.Tensor):
            return int(torch.cuda.current_stream(device).cuda_stream) or DEFAULT_STREAM
        return None

    def stream(self, device: int) -> int:
        """Make a stream that does not wait for the default one."""
        with self._cuda.Device(device):
            made = self._cuda.Stream(non_blocking=True)
        self._streams.append(made)  # it goes with the process
        return int(made.ptr)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Make host memory that devices copy from and to; CuPy keeps it for the next."""
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(self._cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def room(self, nbytes: int, device: int, stream: int) -> Room:
        """Make device memory for work on one stream, from CuPy's pool."""
        with self._on(device, stream):
            made = self._cuda.alloc(nbytes)
        return Room(int(made.ptr), made)

    def record(self, stream: int, device: int) -> Event:
        """Mark the present end of a stream."""
        with self._cuda.Device(device):
            event: Event = self._cuda.Event(disable_timing=True)
            self._calls.eventRecord(event.ptr, stream)  # type: ignore[attr-defined]
        return event

    def hold(self, stream: int, event: Event, device: int) -> None:
        """Let a stream wait for an event."""
        with self._cuda.Device(device):
            self._calls.streamWaitEvent(stream, event.ptr)  # type: ignore[attr-defined]

    def copy(self, target: int, source: int, nbytes: int, stream: int, device: int) -> None:
        """Copy bytes on a stream; CUDA sees by the addresses from where to where."""
        with self._cuda.Device(device):
            self._calls.memcpyAsync(target, source, nbytes, self._calls.memcpyDefault, stream)

    def gather(self, array: DeviceArray, target: int, stream: int) -> None:
        """Copy an array with gaps side by side to device memory, on a stream."""
        with self._on(array.device, stream):
            self._side_by_side(array, target)[...] = self._view(array)

    def scatter(self, source: int, array: DeviceArray, stream: int) -> None:
        """Copy packed device memory to an array with gaps, on a stream."""
        with self._on(array.device, stream):
            self._view(array)[...] = self._side_by_side(array, source)

    def name_of(self, device: int) -> str:
        """Name a device by its place on the bus."""
        return str(self._calls.deviceGetPCIBusId(device))

    def lacks_groups(self) -> str:
        """Say why there is no NCCL; "" where there is."""
        return lacks(self._cuda)

    def group_id(self) -> object:
        """Make the identity of a new NCCL communicator."""
        return self._cuda.nccl.get_unique_id()

    def group(self, identity: object, rank: int, size: int, device: int) -> DeviceGroup:
        """Join an NCCL communicator."""
        with self._cuda.Device(device):
            return NcclGroup(self._cuda, identity, rank, size, device)

    def ipc_memory(self, nbytes: int, marks: int, device: int) -> IpcMemory:
        """Make device memory that other processes open."""
        return CudaIpcMemory(self._cuda, nbytes, marks, device)

    def opened(self, handles: tuple[bytes, ...], device: int) -> IpcMemory:
        """Open another process's IPC memory."""
        return OpenedIpcMemory(self._cuda, handles, device)

    def combine(
        self, op: str, dtype: str, sources: list[int], target: int, count: int, stream: int,
        device: int,
    ) -> None:  # fmt: skip
        """Combine vectors in the order given, on a stream."""
        function = getattr(self._cupy, _FUNCTIONS[op])
        with self._on(device, stream):
            out, first, *others = (
                self._vector(place, count, dtype, device) for place in (target, *sources)
            )
            if not others:
                out[...] = first
            for other in others:
                function(first, other, out=out)
                first = out
            if op == "MEAN":
                self._cupy.true_divide(out, len(sources), out=out)

    def rows(self, count: int, nbytes: int, device: int, stream: int) -> Any:
        """Make an array of uint8 with rows at multiples of 256 bytes."""
        with self._on(device, stream):
            return self._cupy.empty((count, -(-nbytes // 256) * 256), "u1")[:, :nbytes]

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> Any:
        """Make an array of CuPy; it raises TypeError or ValueError for other types."""
        with self._on(device, stream):
            return self._cupy.empty(shape, dtype)

    def launch(
        self, source: str, name: str, groups: int, threads: int, arguments: tuple[int, ...],
        stream: int, device: int,
    ) -> None:  # fmt: skip
        """Run a kernel on a stream; CuPy compiles it once a device."""
        kernel = self._kernels.get(source)
        if kernel is None:
            kernel = self._kernels[source] = self._cupy.RawKernel(source, name)
        with self._on(device, stream):
            kernel((groups,), (threads,), tuple(map(np.int64, arguments)))

    @contextmanager
    def _on(self, device: int, stream: int) -> Iterator[None]:
        """Let CuPy work on a device and a given stream inside a block."""
        with self._cuda.Device(device), self._stream(device, stream):
            yield

    def _stream(self, device: int, stream: int) -> Any:
        """See a stream as CuPy's; kept, since CuPy must never destroy it."""
        found = self._foreign.get((device, stream))
        if found is None:
            wrap = getattr(self._cuda.Stream, "from_external", None)
            if wrap is None:  # before CuPy 14
                return self._cuda.ExternalStream(stream)
            found = self._foreign[device, stream] = wrap(_Foreign(stream))
        return found

    def _vector(self, pointer: int, count: int, dtype: str, device: int) -> Any:
        """See device memory of any process as an array."""
        nbytes = count * np.dtype(dtype).itemsize
        memory = self._cuda.UnownedMemory(pointer, nbytes, self, device)
        return self._cupy.ndarray((count,), dtype, self._cuda.MemoryPointer(memory, 0))

    def _view(self, array: DeviceArray) -> Any:
        """See an array as CuPy's, of words that have as many bytes as its elements."""
        return self._words(array, array.pointer, array.strides)

    def _side_by_side(self, array: DeviceArray, pointer: int) -> Any:
        """See device memory as an array of the same shape without gaps."""
        return self._words(array, pointer, None)

    def _words(self, array: DeviceArray, pointer: int, strides: tuple[int, ...] | None) -> Any:
        shape, size = array.shape, array.dtype.itemsize
        if size not in _WORDS:
            shape = (*shape, size)
            strides = None if strides is None else (*strides, 1)
        memory = self._cuda.UnownedMemory(pointer, array.nbytes, array.owner, array.device)
        place = self._cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(shape, _WORDS.get(size, "u1"), place, strides)
