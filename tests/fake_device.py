"""A device made of host memory, as unforgiving as a device can be.

Its addresses are none of the host's: whoever follows one crashes.  Its streams
do nothing until somebody waits, and then no more than they must: whoever
forgets to wait finds what was there before.  Pinned memory that was given back
is overwritten at once.
"""

# ruff: noqa: ARG002 - what the package passes, whether it is needed here or not
from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.comms.gpu.cuda_ipc import MARKS
from closeranks.comms.gpu.device_array import DEFAULT_STREAM, DeviceArray, Event, Room
from closeranks.errors import Unavailable

Bytes = NDArray[np.uint8]
_NOT_MAPPED = 0x7F80_0000_0000_0000
_APART = 1 << 32
STALE = 0xEE


class FakeEvent:
    """A place in the queue of a stream."""

    def __init__(self, stream: FakeStream, place: int) -> None:
        self._stream, self._place = stream, place

    @property
    def done(self) -> bool:
        if self._stream.moves.is_set():
            self._stream.run(self._place)
        return self._stream.finished >= self._place

    def synchronize(self) -> None:
        self._stream.run(self._place)


class FakeStream:
    """Work that waits until somebody waits for it."""

    def __init__(self, lock: Any, moves: threading.Event) -> None:
        self._lock, self.moves = lock, moves
        self._work: list[Callable[[], object]] = []
        self.finished = 0

    def put(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def record(self) -> FakeEvent:
        return FakeEvent(self, len(self._work))

    def run(self, place: int) -> None:
        with self._lock:
            while self.finished < place:
                work = self._work[self.finished]
                work()
                self.finished += 1
                self._work[self.finished - 1] = _nothing


def _nothing() -> None:
    return None


def _no_kernel(*_: object) -> None:
    raise AssertionError("nobody runs kernels here")


class FakeDevice:
    """A `closeranks.comms.gpu.device_array.Runtime` of two devices.

    Parameters
    ----------
    visible : bool
        Addresses are those of the host memory, for libraries that may follow
        them.
    """

    def __init__(self, *, visible: bool = False) -> None:
        self._visible = visible
        self._lock = threading.RLock()
        #: While it is set, the device goes on when somebody looks, too.
        self.moves = threading.Event()
        self._blocks: dict[int, Bytes] = {}
        self._next = _NOT_MAPPED
        self._streams: dict[int, FakeStream] = {DEFAULT_STREAM: FakeStream(self._lock, self.moves)}
        self._given_back: dict[int, list[int]] = {}
        self._local = threading.local()
        #: Ranks whose devices can talk, why they cannot, and whether they share one.
        self.comm: MPI.Intracomm | None = None
        self.refusal, self.is_shared = "", False
        self.groups: list[FakeGroup] = []
        #: Whether other ranks' IPC memories cannot be opened; and how many are open.
        self.unreachable, self.ipc_memories, self.combined = False, 0, 0
        self.copies = 0
        self.on_device_copies = 0
        #: What runs kernels; and how many there were.
        self.kernel: Callable[[str, str, int, int, tuple[int, ...]], object] = _no_kernel
        self.launched = 0

    # What a program does.

    @property
    def current(self) -> int:
        """The stream that this thread works on."""
        found: int = getattr(self._local, "current", DEFAULT_STREAM)
        return found

    @contextmanager
    def using(self, stream: int) -> Iterator[None]:
        """Work on a stream for a while."""
        before, self._local.current = self.current, stream
        try:
            yield
        finally:
            self._local.current = before

    def array(self, values: Any, *, device: int = 0, ordered: bool = True) -> FakeArray:
        """Make an array that holds values, once the current stream gets there."""
        host = np.array(values, order="C")
        pointer = self._allocate(host.nbytes)
        made = FakeArray(self, pointer, host.shape, host.strides, host.dtype, device, ordered)
        made.set(host)
        return made

    def full(self, shape: Any, value: Any, dtype: Any, **options: Any) -> FakeArray:
        """Make an array full of one value."""
        return self.array(np.full(shape, value, dtype), **options)

    # What the package asks for.

    def device_of(self, pointer: int) -> int | None:
        return 0 if self._find(pointer) is not None else None

    def stream_of(self, buffer: object, device: int) -> int | None:
        return None

    def stream(self, device: int) -> int:
        number = 100 + len(self._streams)
        self._streams[number] = FakeStream(self._lock, self.moves)
        return number

    def pinned(self, nbytes: int) -> Bytes:
        """Give memory that was given back last, if there is any."""
        if not nbytes:
            return np.empty(0, np.uint8)
        again = self._given_back.setdefault(nbytes, [])
        address = again.pop() if again else _kept(nbytes)
        block: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(block, self._take_back, address, nbytes).atexit = False
        seen: Bytes = np.frombuffer(block, np.uint8)
        return seen

    def room(self, nbytes: int, device: int, stream: int) -> Room:
        return Room(self._allocate(nbytes), None)

    def record(self, stream: int, device: int) -> Event:
        return self._streams[stream].record()

    def hold(self, stream: int, event: Event, device: int) -> None:
        self._streams[stream].put(event.synchronize)

    def copy(self, target: int, source: int, nbytes: int, stream: int, device: int) -> None:
        self.copies += 1

        def work() -> None:
            ctypes.memmove(self._real(target, nbytes), self._real(source, nbytes), nbytes)

        self._streams[stream].put(work)

    def gather(self, array: DeviceArray, target: int, stream: int) -> None:
        self.on_device_copies += 1
        packed = self._see(target, array.shape, None, array.dtype)
        view = self._see(array.pointer, array.shape, array.strides, array.dtype)
        self._streams[stream].put(lambda: np.copyto(packed, view))

    def scatter(self, source: int, array: DeviceArray, stream: int) -> None:
        self.on_device_copies += 1
        packed = self._see(source, array.shape, None, array.dtype)
        view = self._see(array.pointer, array.shape, array.strides, array.dtype)
        self._streams[stream].put(lambda: np.copyto(view, packed))

    def name_of(self, device: int) -> str:
        assert self.comm is not None
        return f"card {device if self.is_shared else self.comm.rank}"

    def lacks_groups(self) -> str:
        return self.refusal

    def group_id(self) -> object:
        return "group"

    def group(self, identity: object, rank: int, size: int, device: int) -> FakeGroup:
        assert identity == "group"
        assert self.comm is not None
        self.groups.append(FakeGroup(self, self.comm.Dup()))
        return self.groups[-1]

    def ipc_memory(self, nbytes: int, marks: int, device: int) -> FakeDesk:
        if self.refusal:
            raise Unavailable(self.refusal, "try elsewhere")
        fd = os.memfd_create("ipc_memory")
        os.ftruncate(fd, nbytes)
        return FakeDesk(self, fd, nbytes)

    def opened(self, handles: tuple[bytes, ...], device: int) -> FakeDesk:
        path = handles[0].decode()
        if self.unreachable:
            raise Unavailable("no peer access", "try elsewhere")
        fd = os.open(path, os.O_RDWR)
        return FakeDesk(self, fd, os.fstat(fd).st_size)

    def combine(
        self, op: str, dtype: str, sources: list[int], target: int, count: int, stream: int,
        device: int,
    ) -> None:  # fmt: skip
        combined = {"SUM": np.add, "MEAN": np.add, "PROD": np.multiply, "MAX": np.maximum,
                    "MIN": np.minimum}[op]  # fmt: skip
        out, *given = [
            self._see(place, (count,), None, np.dtype(dtype)) for place in (target, *sources)
        ]

        def work() -> None:
            total = given[0].copy()
            for other in given[1:]:
                combined(total, other, out=total)
            out[:] = total / len(given) if op == "MEAN" else total

        self.combined += 1
        self._streams[stream].put(work)

    def rows(self, count: int, nbytes: int, device: int, stream: int) -> FakeArray:
        stride = -(-nbytes // 256) * 256
        shape, strides = (count, nbytes), (stride, 1)
        pointer = self._allocate(count * stride)
        return FakeArray(self, pointer, shape, strides, np.dtype(np.uint8), device, True)

    def empty(self, shape: tuple[int, ...], dtype: Any, device: int, stream: int) -> FakeArray:
        dtype = np.dtype(dtype)
        if dtype.kind in "OSUMm":
            raise TypeError(f"no arrays of {dtype} here")
        host = np.empty(shape, dtype)
        pointer = self._allocate(host.nbytes)
        return FakeArray(self, pointer, host.shape, host.strides, dtype, device, True)

    def launch(
        self, source: str, name: str, groups: int, threads: int, arguments: tuple[int, ...],
        stream: int, device: int,
    ) -> None:  # fmt: skip
        self.launched += 1
        self._streams[stream].put(lambda: self.kernel(source, name, groups, threads, arguments))

    # How it works.

    def put(self, work: Callable[[], object], stream: int | None = None) -> None:
        """Queue work on a stream, the current one by default."""
        self._streams[self.current if stream is None else stream].put(work)

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, the current one by default."""
        self._streams[self.current if stream is None else stream].record().synchronize()

    def _allocate(self, nbytes: int) -> int:
        memory = np.full(max(nbytes, 1), STALE, np.uint8)
        address = memory.ctypes.data
        if not self._visible:
            address, self._next = self._next, self._next + _APART
        self._blocks[address] = memory
        return address

    def _find(self, pointer: int) -> tuple[int, Bytes] | None:
        for start, memory in self._blocks.items():
            if start <= pointer < start + len(memory):
                return start, memory
        return None

    def _real(self, pointer: int, nbytes: int) -> int:
        """Translate an address of the device; the host's stay what they are."""
        found = self._find(pointer)
        if found is None:
            return pointer
        start, memory = found
        assert pointer - start + nbytes <= len(memory), "a copy leaves the device array"
        address: int = memory.ctypes.data
        return address + pointer - start

    def _see(
        self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Any
    ) -> NDArray[Any]:
        found = self._find(pointer)
        assert found is not None
        start, memory = found
        return np.ndarray(shape, dtype, memory, pointer - start, strides)

    def _take_back(self, address: int, nbytes: int) -> None:
        ctypes.memset(address, STALE, nbytes)
        self._given_back[nbytes].append(address)


class FakeDesk:
    """A `closeranks.comms.gpu.device_array.IpcMemory`: a file in memory that other ranks map.

    A mark lets the stream run up to it, so whoever meets the others without one
    shows them what was there before.
    """

    def __init__(self, fake: FakeDevice, fd: int, nbytes: int) -> None:
        self._fake, self._fd = fake, fd
        self.pointer, fake._next = fake._next, fake._next + _APART
        self._map = mmap.mmap(fd, nbytes)
        fake._blocks[self.pointer] = np.frombuffer(self._map, np.uint8)
        self.handles = (f"/proc/{os.getpid()}/fd/{fd}".encode(),)
        fake.ipc_memories += 1

    def mark(self, number: int, stream: int) -> None:
        self._fake.synchronize(stream)

    def follow(self, number: int, stream: int) -> None:
        assert 0 <= number < MARKS

    def settle(self) -> None:
        for stream in self._fake._streams:
            self._fake.synchronize(stream)

    def close(self) -> None:
        del self._fake._blocks[self.pointer]
        os.close(self._fd)
        self._fake.ipc_memories -= 1


class FakeGroup:
    """A `closeranks.comms.gpu.device_array.DeviceGroup`: MPI, when a stream gets there."""

    def __init__(self, fake: FakeDevice, comm: MPI.Intracomm) -> None:
        self._fake, self._comm = fake, comm
        self.is_closed = self.is_revoked = False

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        def work() -> None:
            out = self._see(target, count, dtype)
            out[:] = self._combined(source, count, dtype, op)

        self._fake.put(work, stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        def work() -> None:
            total = self._combined(source, count, dtype, op)
            if self._comm.rank == root:
                self._see(target, count, dtype)[:] = total

        self._fake.put(work, stream)

    def bcast(self, place: int, nbytes: int, root: int, stream: int) -> None:
        self._fake.put(lambda: self._comm.Bcast(self._see(place, nbytes, "uint8"), root), stream)

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        def work() -> None:
            mine = self._see(source, nbytes, "uint8").copy()
            self._comm.Allgather(mine, self._see(target, nbytes * self._comm.size, "uint8"))

        self._fake.put(work, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        def work() -> None:
            total = self._combined(source, count * self._comm.size, dtype, op)
            self._see(target, count, dtype)[:] = total[count * self._comm.rank :][:count]

        self._fake.put(work, stream)

    def close(self) -> None:
        self.is_closed = True
        self._comm.Free()

    def revoke(self) -> None:
        self.is_revoked = True

    def _see(self, pointer: int, count: int, dtype: str) -> NDArray[Any]:
        return self._fake._see(pointer, (count,), None, np.dtype(dtype))

    def _combined(self, source: int, count: int, dtype: str, op: str) -> NDArray[Any]:
        total = self._see(source, count, dtype).copy()
        self._comm.Allreduce(MPI.IN_PLACE, total, MPI.SUM if op == "MEAN" else getattr(MPI, op))
        return total / self._comm.size if op == "MEAN" else total


_forever: list[Any] = []


def _kept(nbytes: int) -> int:
    """Make memory that is never freed, and give its address."""
    memory = np.full(nbytes, STALE, np.uint8)
    _forever.append(memory)
    address: int = memory.ctypes.data
    return address


class _Flags:
    """What CuPy's arrays say of their memory, and no more."""

    def __init__(self, c_contiguous: bool) -> None:
        self.c_contiguous = c_contiguous


class _Unseen(mmap.mmap):
    """Has the buffer protocol and refuses it, as CuPy's arrays since 14 do."""

    def __new__(cls, *_: object, **__: object) -> _Unseen:
        made = super().__new__(cls, -1, 1)
        made.close()
        return made


class FakeArray(_Unseen):
    """An array on the device, with the CUDA array interface."""

    def __init__(
        self,
        runtime: FakeDevice,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        device: int,
        ordered: bool,
    ) -> None:
        self._runtime, self._pointer = runtime, pointer
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self._ordered = ordered
        self.read_only = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        said = {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self._pointer, self.read_only),
            "version": 3,
        }
        return said | ({"stream": self._runtime.current} if self._ordered else {})

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def flags(self) -> _Flags:
        return _Flags(self._view().flags.c_contiguous)

    def _view(self) -> NDArray[Any]:
        return self._runtime._see(self._pointer, self.shape, self.strides, self.dtype)

    def __getitem__(self, index: Any) -> FakeArray:  # type: ignore[override]
        whole = self._view()
        part = whole[index]
        moved = part.ctypes.data - whole.ctypes.data
        return FakeArray(
            self._runtime, self._pointer + moved, part.shape, part.strides, self.dtype,
            self.device, self._ordered,
        )  # fmt: skip

    def set(self, values: Any) -> None:
        """Write values, once the current stream gets there."""
        view, host = self._view(), np.array(values, self.dtype)
        self._runtime.put(lambda: np.copyto(view, host))

    def get(self) -> NDArray[Any]:
        """Wait for the current stream and read."""
        self._runtime.synchronize()
        return self._view().copy()

    def peek(self) -> NDArray[Any]:
        """Read what is there now, without waiting for anything."""
        return self._view().copy()
