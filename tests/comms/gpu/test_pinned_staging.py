"""Copies between a device and the host, in the order of streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from closeranks.comms.buffers.array_memory import memory
from closeranks.comms.buffers.pack_entries import room
from closeranks.comms.gpu.array_interface import device_array, dlpack_tensor, install
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.comms.gpu.pinned_staging import Span, copy_streams, fetch, put
from closeranks.errors import Unavailable, UsageError
from tests.fake_device import STALE, FakeArray, FakeDevice


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    runtime = FakeDevice()
    remove = install(runtime)
    yield runtime
    remove()


def there(array: FakeArray) -> DeviceArray:
    found = device_array(array, "test")
    assert found is not None
    return found


def fetched(array: FakeArray) -> np.ndarray[Any, Any]:
    found = memory(array, "test")
    assert found.device is not None
    out = room(found, found.nbytes)
    fetch(found.device, [Span(0, 0, found.nbytes)], out)
    return out.view(found.dtype)


def pinned(fake: FakeDevice, values: Any) -> np.ndarray[Any, Any]:
    data = np.asarray(values)
    out = fake.pinned(data.nbytes)
    out[:] = data.view(np.uint8)
    return out


def test_an_array_says_where_it_lies(fake: FakeDevice) -> None:
    x = fake.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    found = memory(x, "test", writable=True)
    assert (found.nbytes, found.dtype.name, found.contiguous) == (48, "float32", True)
    assert found.data.size == 0
    assert memory(x[:, 1], "test").contiguous is False
    assert memory(x[1:], "test").contiguous


def test_what_the_callers_stream_does_before_is_waited_for(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(4))
    x.set([1.0, 2, 3, 4])
    assert (x.peek().view(np.uint8) == STALE).all()  # nothing has run yet
    assert fetched(x).tolist() == [1, 2, 3, 4]


def test_it_is_the_current_stream_that_is_waited_for(fake: FakeDevice) -> None:
    other = fake.stream(0)
    x = fake.array(np.zeros(2))
    fake.synchronize()
    with fake.using(other):
        x.set([5.0, 6])
        assert fetched(x).tolist() == [5, 6]


def test_the_callers_stream_finds_what_was_copied_back(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(3))
    put(there(x), [Span(0, 0, 24)], pinned(fake, [7.0, 8, 9]))
    assert (x.peek().view(np.uint8) == STALE).all()  # the host has not waited
    assert x.get().tolist() == [7, 8, 9]


def test_what_the_callers_stream_still_writes_comes_first(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(2))
    x.set([1.0, 1])
    found = there(x)
    put(found, [Span(0, 0, 16)], pinned(fake, [2.0, 2]))
    found.settle()
    assert x.peek().tolist() == [2, 2]
    assert x.get().tolist() == [2, 2]


def test_where_no_stream_is_told_the_host_waits(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(2), ordered=False)
    put(there(x), [Span(0, 0, 16)], pinned(fake, [3.0, 4]))
    assert x.peek().tolist() == [3, 4]


def test_pinned_memory_lives_until_it_has_been_copied(fake: FakeDevice) -> None:
    x, y = fake.array(np.zeros(2)), fake.array(np.zeros(2))
    for array, value in ((x, 1.0), (y, 2.0)):
        put(there(array), [Span(0, 0, 16)], pinned(fake, [value, value]))
    assert x.get().tolist() == [1, 1]
    assert y.get().tolist() == [2, 2]


def test_pinned_memory_is_used_again(fake: FakeDevice) -> None:
    x = fake.array(np.arange(2.0))
    assert fetched(x).tolist() == [0, 1]
    first = fetched(x).ctypes.data
    assert {fetched(x).ctypes.data for _ in range(5)} | {first} >= {first}
    assert sum(len(one) for one in fake._given_back.values()) <= 3


def test_gaps_go_through_a_packed_copy_on_the_device(fake: FakeDevice) -> None:
    x = fake.array(np.arange(12.0).reshape(3, 4))
    column = x[::2, 1]
    assert fetched(column).tolist() == [1, 9]
    assert fake.on_device_copies == 1
    put(there(column), [Span(0, 0, 16)], pinned(fake, [-1.0, -9]))
    assert fake.on_device_copies == 2  # all of it: nothing to keep
    assert x.get()[:, 1].tolist() == [-1, 5, -9]
    put(there(x[:, 0]), [Span(8, 0, 8)], pinned(fake, [-4.0]))
    assert x.get()[:, 0].tolist() == [0, -4, 8]


def test_parts_go_where_spans_say(fake: FakeDevice) -> None:
    x = fake.array(np.arange(6, dtype=np.uint8))
    found = there(x)
    out = fake.pinned(3)
    fetch(found, [Span(4, 0, 2), Span(0, 2, 1)], out)
    assert out.tolist() == [4, 5, 0]
    put(found, [Span(1, 2, 1), Span(5, 0, 1)], pinned(fake, np.array([7, 8, 9], np.uint8)))
    assert x.get().tolist() == [0, 9, 2, 3, 4, 7]


def test_column_major_arrays_have_no_gaps(fake: FakeDevice) -> None:
    x = fake.array(np.arange(6.0).reshape(2, 3))
    turned = FakeArray(fake, x._pointer, (3, 2), (8, 24), x.dtype, 0, True)
    assert there(turned).contiguous
    assert there(x[:1, :2]).contiguous
    assert not there(x[:, :2]).contiguous


def test_what_is_not_to_be_written_is_refused(fake: FakeDevice) -> None:
    x = fake.array(np.zeros(2))
    x.read_only = True
    assert memory(x, "test").device is not None
    with pytest.raises(UsageError, match="read-only"):
        memory(x, "test", writable=True)


def test_an_empty_array_needs_no_device(fake: FakeDevice) -> None:
    found = memory(fake.array(np.zeros((0, 3), np.float32)), "test", writable=True)
    assert (found.device, found.nbytes, found.dtype.name) == (None, 0, "float32")


def test_lanes_are_made_once_a_device(fake: FakeDevice) -> None:
    x, y = fake.array(np.zeros(2)), fake.array(np.zeros(2))
    assert copy_streams(there(x)) is copy_streams(there(y))


class _Tensor:
    """An array of a CUDA device, seen through DLPack; its memory is the host's."""

    def __init__(self, kind: int = 2) -> None:
        self.host, self.kind = np.arange(6.0).reshape(2, 3), kind
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.kind, 0)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.asked.append(stream)
        return self.host.__dlpack__()


def test_without_cupy_the_way_out_is_told() -> None:
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(Unavailable, match=r"closeranks\[cuda\].*copy the array to the host"):
            memory(_Tensor(), "Bcast")
        return
    pytest.skip("CuPy is installed here")


def test_other_devices_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="device type 10; copy it to the host"):
        memory(_Tensor(kind=10), "Bcast")


def test_a_tensor_that_computes_gradients_says_so() -> None:
    class Leaf(_Tensor):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("requires grad")

    with pytest.raises(UsageError, match=r"requires grad; pass x.detach\(\)"):
        memory(Leaf(), "Bcast")


def test_a_tensor_of_an_installed_runtime_comes_by_dlpack(fake: FakeDevice) -> None:
    x, tensor = fake.array(np.zeros(2)), _Tensor()
    fake._blocks[tensor.host.ctypes.data] = tensor.host.reshape(-1).view(np.uint8)
    found = device_array(tensor, "test")
    assert found is not None
    assert (found.shape, found.strides, found.dtype.name) == ((2, 3), (24, 8), "float64")
    assert not found.is_ordered
    assert set(tensor.asked) == {1}  # its maker lets the default stream wait
    assert x.device == 0


def test_a_type_that_has_no_name_in_the_interface_comes_by_dlpack(fake: FakeDevice) -> None:
    class Old(_Tensor):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise KeyError("bfloat16")

    tensor = Old()
    fake._blocks[tensor.host.ctypes.data] = tensor.host.reshape(-1).view(np.uint8)
    assert there(tensor).shape == (2, 3)  # type: ignore[arg-type]


def test_bfloat16_is_known_by_dlpack_where_the_interface_has_no_name() -> None:
    capsule = np.arange(4, dtype=np.int16).reshape(2, 2)[:, ::-1].__dlpack__()
    assert dlpack_tensor(capsule)[2:] == ((2, 2), (4, -2), np.dtype(np.int16))
    assert np.dtype(ml_dtypes.bfloat16).itemsize == 2
