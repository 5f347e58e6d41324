"""What is asked of CuPy, on a stand-in with the signatures of CuPy 13's own."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from closeranks.comms.gpu.array_place import DevicePlace
from closeranks.comms.gpu.cupy_runtime import CupyRuntime
from closeranks.comms.gpu.device_array import DEFAULT_STREAM, DeviceArray
from closeranks.errors import Unavailable


class StandIn:
    """As much of CuPy as is used; its device memory is the host's."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.device, self.stream = 0, 0
        calls = SimpleNamespace(
            memcpyDefault=4,
            memcpyAsync=self._copy,
            eventRecord=lambda event, stream: self._note("record", event, stream),
            streamWaitEvent=lambda stream, event: self._note("wait", stream, event),
            pointerGetAttributes=lambda pointer: SimpleNamespace(device=pointer % 7),
        )
        self.cuda = SimpleNamespace(
            runtime=calls,
            Device=lambda number: self._within("device", number),
            ExternalStream=lambda pointer: self._within("stream", pointer),
            Stream=lambda non_blocking: SimpleNamespace(ptr=500 + non_blocking),
            Event=lambda disable_timing: SimpleNamespace(ptr=900 + disable_timing),
            alloc=lambda nbytes: SimpleNamespace(ptr=nbytes),
            alloc_pinned_memory=lambda nbytes: bytearray(nbytes + 5),
            UnownedMemory=lambda pointer, size, owner, device: (pointer, size, owner, device),
            MemoryPointer=lambda memory, offset: memory[0] + offset,
            get_current_stream=lambda device: SimpleNamespace(
                ptr=self.stream and self.stream + device
            ),
        )

    class ndarray:
        """Words at an address."""

        def __init__(self, shape: Any, dtype: str, memptr: int, strides: Any = None) -> None:
            reach: Any = (ctypes.c_uint8 * 16).from_address(memptr)
            if strides is None:
                strides = np.empty(shape, dtype).strides
            self.words = np.lib.stride_tricks.as_strided(
                np.ndarray((1,), dtype, reach), shape, strides
            )

        def __setitem__(self, index: Any, other: StandIn.ndarray) -> None:
            self.words[index] = other.words

    @contextmanager
    def _within(self, what: str, value: int) -> Iterator[None]:
        before = getattr(self, what)
        setattr(self, what, value)
        yield
        setattr(self, what, before)

    def _note(self, *what: Any) -> None:
        self.log.append((*what, self.device))

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self._note("copy", target, source, nbytes, kind, stream)


@pytest.fixture
def cupy() -> StandIn:
    return StandIn()


def test_calls_are_made_on_the_device_they_are_for(cupy: StandIn) -> None:
    runtime = CupyRuntime(cupy)
    event = runtime.record(31, 2)
    runtime.hold(32, event, 3)
    runtime.copy(1000, 2000, 64, 33, 1)
    assert cupy.log == [
        ("record", 901, 31, 2),
        ("wait", 32, 901, 3),
        ("copy", 1000, 2000, 64, 4, 33, 1),
    ]
    assert runtime.device_of(11) == 4
    assert runtime.stream(0) == 501  # one that does not wait for the default stream
    assert runtime.room(77, 0, 5).pointer == 77


def test_pinned_memory_has_the_size_that_was_asked_for(cupy: StandIn) -> None:
    runtime = CupyRuntime(cupy)
    made = runtime.pinned(10)
    assert (made.nbytes, made.dtype.name, made.flags.writeable) == (10, "uint8", True)
    assert runtime.pinned(0).nbytes == 0


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16", "V3"])
@pytest.mark.parametrize("backwards", [False, True])
def test_gaps_are_packed_and_filled(cupy: StandIn, dtype: str, backwards: bool) -> None:
    runtime = CupyRuntime(cupy)
    size = np.dtype(dtype).itemsize
    memory = np.arange(4096, dtype=np.uint8)
    whole = memory[: 24 * size].view(dtype).reshape(4, 6)
    part = whole[::-1, 1::2] if backwards else whole[::2, 1::3]
    array = DeviceArray(part.ctypes.data, part.shape, part.strides, part.dtype, 1, True, whole,
                        runtime)  # fmt: skip
    packed = np.zeros(4096, np.uint8)
    runtime.gather(array, packed.ctypes.data, 9)
    assert packed[: part.nbytes].tobytes() == part.tobytes()
    packed[:] = 200 - packed
    runtime.scatter(packed.ctypes.data, array, 9)
    assert part.tobytes() == packed[: part.nbytes].tobytes()
    assert (cupy.device, cupy.stream) == (0, 0)


def test_streams_are_wrapped_once_by_cupy_14(cupy: StandIn) -> None:
    made: list[tuple[int, int]] = []

    class Stream:
        """As of CuPy 14, which destroys what it has made itself."""

        @staticmethod
        def from_external(foreign: Any) -> Any:
            version, pointer = foreign.__cuda_stream__()
            assert version == 0
            made.append((cupy.device, pointer))
            return _Wrapped(cupy, pointer)

    cupy.cuda.Stream = Stream
    del cupy.cuda.ExternalStream
    cupy.cuda.alloc = lambda _: SimpleNamespace(ptr=1000 * cupy.device + cupy.stream)
    runtime = CupyRuntime(cupy)
    places = [
        runtime.room(8, device, stream).pointer for device, stream in [(1, 7), (2, 7), (1, 7)]
    ]
    assert places == [1007, 2007, 1007]
    assert made == [(1, 7), (2, 7)]
    assert (cupy.device, cupy.stream) == (0, 0)


class _Wrapped:
    """A stream that is entered again and again."""

    def __init__(self, cupy: StandIn, pointer: int) -> None:
        self._cupy, self._pointer = cupy, pointer
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self._cupy.stream)
        self._cupy.stream = self._pointer

    def __exit__(self, *_: object) -> None:
        self._cupy.stream = self._before.pop()


def test_the_current_stream_of_an_array(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = CupyRuntime(cupy)
    array = StandIn.ndarray((1,), "u1", np.zeros(4096, np.uint8).ctypes.data)
    assert runtime.stream_of(array, 0) == DEFAULT_STREAM
    cupy.stream = 44
    assert runtime.stream_of(array, 0) == 44
    assert runtime.stream_of(array, 3) == 47
    assert runtime.stream_of(object(), 0) is None

    class Tensor:
        """PyTorch's."""

    current = {0: 0, 1: 66}
    torch = SimpleNamespace(
        Tensor=Tensor,
        cuda=SimpleNamespace(
            current_stream=lambda device: SimpleNamespace(cuda_stream=current[device])
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert runtime.stream_of(Tensor(), 0) == DEFAULT_STREAM
    assert runtime.stream_of(Tensor(), 1) == 66


class _Sharing(StandIn):
    """CuPy whose memory and events other processes can open."""

    class ndarray(StandIn.ndarray):
        """Numbers at an address."""

        def __init__(self, shape: Any, dtype: str, memptr: int) -> None:
            reach: Any = (ctypes.c_uint8 * 64).from_address(memptr)
            self.words = np.ndarray(shape, dtype, reach)

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.cuda.memory = SimpleNamespace(Memory=self._memory)
        made = iter(range(700, 800))
        self.cuda.Event = lambda disable_timing, interprocess: SimpleNamespace(
            ptr=next(made) + 1000 * (disable_timing and interprocess)
        )
        calls = self.cuda.runtime
        calls.CUDARuntimeError = RuntimeError
        calls.ipcGetMemHandle = lambda pointer: b"memory %d" % pointer
        calls.ipcGetEventHandle = lambda event: b"event %d" % event
        calls.ipcOpenMemHandle = self._open
        calls.ipcOpenEventHandle = lambda handle: int(handle.split()[1]) + 1
        calls.ipcCloseMemHandle = lambda pointer: self._note("close", pointer)
        calls.eventDestroy = lambda event: self._note("destroy", event)
        for name, function in {
            "add": np.add,
            "maximum": np.maximum,
            "true_divide": np.divide,
        }.items():
            setattr(self, name, self._on_words(function))

    def _memory(self, nbytes: int) -> Any:
        if self.refuses:
            raise MemoryError("no room")
        return SimpleNamespace(ptr=nbytes)

    def _open(self, handle: bytes, flags: int) -> int:
        if self.refuses:
            raise RuntimeError("peer access is not supported")
        assert flags == 1
        return int(handle.split()[1]) + 5

    @staticmethod
    def _on_words(function: Any) -> Any:
        def run(a: Any, b: Any, out: Any) -> None:
            function(*(getattr(one, "words", one) for one in (a, b)), out=out.words)

        return run


def test_ipc_memories_are_opened_by_their_handles() -> None:
    cupy = _Sharing()
    runtime = CupyRuntime(cupy)
    own = runtime.ipc_memory(4096, 2, 3)
    assert own.pointer == 4096
    assert own.handles == (b"memory 4096", b"event 1700", b"event 1701")
    opened = runtime.opened(own.handles, 1)
    assert opened.pointer == 4101
    own.mark(1, 31)
    own.follow(0, 32)
    opened.follow(1, 33)
    opened.close()
    own.close()
    assert cupy.log == [
        ("record", 1701, 31, 3), ("wait", 32, 1700, 3), ("wait", 33, 1702, 1),
        ("close", 4101, 1), ("destroy", 1701, 1), ("destroy", 1702, 1),
    ]  # fmt: skip
    cupy.refuses = True
    with pytest.raises(Unavailable, match="memory of device 3 for all ranks of the node: no room"):
        runtime.ipc_memory(4096, 2, 3)
    with pytest.raises(Unavailable, match="another rank's memory on device 1: peer access"):
        runtime.opened(own.handles, 1)


def test_vectors_are_combined_in_order() -> None:
    runtime = CupyRuntime(_Sharing())
    vectors = [np.arange(4.0) + 10 * k for k in range(3)]
    places, out = [one.ctypes.data for one in vectors], np.zeros(4)
    total = np.sum(vectors, axis=0)
    for op, wanted in {"SUM": total, "MAX": vectors[2], "MEAN": total / 3}.items():
        runtime.combine(op, "float64", places, out.ctypes.data, 4, 9, 0)
        assert out.tolist() == wanted.tolist()
    runtime.combine("SUM", "float64", places[:1], out.ctypes.data, 4, 9, 0)
    assert out.tolist() == vectors[0].tolist()


def test_kernels_are_compiled_once_and_run_on_their_stream() -> None:
    cupy = StandIn()
    made: list[tuple[str, str]] = []

    def kernel(source: str, name: str) -> Any:
        made.append((source, name))
        return lambda *given: cupy.log.append((*given, cupy.device, cupy.stream))

    cupy.RawKernel = kernel  # type: ignore[attr-defined]
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype)  # type: ignore[attr-defined]
    runtime = CupyRuntime(cupy)
    for stream in (7, 9):
        runtime.launch("text", "multiply", 3, 256, (1 << 40, 2), stream, 1)
    assert made == [("text", "multiply")]
    assert cupy.log == [((3,), (256,), (1 << 40, 2), 1, stream) for stream in (7, 9)]
    assert all(type(number) is np.int64 for number in cupy.log[0][2])
    rows = runtime.rows(3, 1000, 1, 9)
    assert (rows.shape, rows.strides, rows.dtype.name) == ((3, 1000), (1024, 1), "uint8")


def test_new_arrays_are_made_on_their_device_and_stream(cupy: StandIn) -> None:
    made: list[tuple[Any, ...]] = []

    def empty(shape: Any, dtype: Any) -> Any:
        if np.dtype(dtype).kind == "M":
            raise ValueError("Unsupported dtype")
        made.append((cupy.device, cupy.stream))
        return np.empty(shape, dtype)

    cupy.empty = empty  # type: ignore[attr-defined]
    runtime = CupyRuntime(cupy)
    found = runtime.empty((3, 4), np.dtype("f4"), 2, 9)
    assert (found.shape, found.dtype.name, made) == ((3, 4), "float32", [(2, 9)])
    assert DevicePlace(runtime, 2, 9, True).holds(np.dtype("f4"))
    assert not DevicePlace(runtime, 2, 9, True).holds(np.dtype("M8[s]"))
    cupy.cuda.Device = lambda: SimpleNamespace(id=6)
    assert runtime.current() == 6


class _Communicator:
    """NCCL's communicator, with the signatures of CuPy's."""

    made: list[tuple[int, Any, int]] = []  # noqa: RUF012

    def __init__(self, size: int, identity: Any, rank: int) -> None:
        self.made.append((size, identity, rank))
        self.log: list[tuple[Any, ...]] = []

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        self.log.append(("allReduce", sendbuf, recvbuf, count, datatype, op, stream))

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        self.log.append(("reduce", sendbuf, recvbuf, count, datatype, op, root, stream))

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        self.log.append(("broadcast", sendbuff, recvbuff, count, datatype, root, stream))

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self.log.append(("allGather", sendbuf, recvbuf, count, datatype, stream))

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        self.log.append(("reduceScatter", sendbuf, recvbuf, recvcount, datatype, op, stream))

    def destroy(self) -> None:
        self.log.append(("destroy",))

    def abort(self) -> None:
        self.log.append(("abort",))


def test_nccl_gets_its_arguments_in_its_order(
    cupy: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl = SimpleNamespace(
        available=True,
        get_version=lambda: 22304,
        get_unique_id=lambda: (1, 2, 3),
        NcclCommunicator=_Communicator,
    )
    runtime = CupyRuntime(cupy)
    assert runtime.lacks_groups() == "CuPy finds no NCCL"
    module: Any = ModuleType("cupy.cuda.nccl")  # found once it is imported
    module.available = False
    with monkeypatch.context() as within:
        for name in ("cupy", "cupy.cuda"):
            within.setitem(sys.modules, name, ModuleType(name))
        within.setitem(sys.modules, module.__name__, module)
        assert runtime.lacks_groups() == "CuPy finds no NCCL"
        module.available, module.get_version = True, lambda: 22304
        assert runtime.lacks_groups() == ""
    cupy.cuda.nccl = nccl
    assert runtime.lacks_groups() == ""
    group = runtime.group(runtime.group_id(), 1, 4, 0)
    assert _Communicator.made[-1] == (4, (1, 2, 3), 1)
    group.allreduce(10, 20, 30, "float32", "SUM", 7)
    group.reduce(10, 20, 30, "bfloat16", "MEAN", 3, 7)
    group.bcast(10, 80, 2, 7)
    group.allgather(10, 20, 80, 7)
    group.reduce_scatter(10, 20, 30, "int64", "MIN", 7)
    group.close()
    group.revoke()
    assert group._comm.log == [  # type: ignore[attr-defined]
        ("allReduce", 10, 20, 30, 7, 0, 7),
        ("reduce", 10, 20, 30, 9, 4, 3, 7),
        ("broadcast", 10, 10, 80, 1, 2, 7),
        ("allGather", 10, 20, 80, 1, 7),
        ("reduceScatter", 10, 20, 30, 4, 3, 7),
        ("destroy",),
        ("abort",),
    ]
    group._comm.log.clear()  # type: ignore[attr-defined]
    group.bcast(0, (1 << 31) + 1, 2, 7)  # more than a C int counts
    parts = [entry[1:4] for entry in group._comm.log]  # type: ignore[attr-defined]
    assert parts == [(0, 0, 1 << 30), (1 << 30, 1 << 30, 1 << 30), (1 << 31, 1 << 31, 1)]
    nccl.get_version = lambda: 2708
    assert runtime.lacks_groups() == "NCCL 2708 is older than 21000"
