"""Arguments on devices are read on the host; results go where these lay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from closeranks.comms.gpu import array_interface
from closeranks.comms.gpu.array_interface import install
from closeranks.comms.gpu.array_place import arrays_on_host, placed
from closeranks.errors import Unavailable, UsageError
from tests.fake_device import FakeArray, FakeDevice


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    runtime = FakeDevice()
    remove = install(runtime)
    yield runtime
    remove()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?", "c16"])
def test_what_was_read_comes_back(fake: FakeDevice, dtype: str) -> None:
    whole = np.arange(24).reshape(2, 3, 4).astype(dtype)
    table = fake.array(whole)
    faces: list[Any] = [
        np.s_[:],
        np.s_[1],
        np.s_[:, 1:, ::2],
        np.s_[::-1],
        np.s_[:0],
        np.s_[0, 0, 0, ...],
    ]
    for face in faces:
        given = table[face]
        (found,), (place,) = arrays_on_host([given], "test")
        assert (found.dtype, found.flags.c_contiguous) == (whole.dtype, True)
        np.testing.assert_array_equal(found, whole[face])
        made = placed(found, place)
        assert isinstance(made, FakeArray)
        assert (made.shape, made.dtype) == (given.shape, given.dtype)
        np.testing.assert_array_equal(made.get(), whole[face])


def test_arrays_in_another_order_are_read_by_their_indices(fake: FakeDevice) -> None:
    whole = np.arange(12.0).reshape(3, 4)
    table = fake.array(whole)
    turned = FakeArray(fake, table._pointer, (4, 3), table.strides[::-1], table.dtype, 0, True)
    (found,), _ = arrays_on_host([turned], "test")
    np.testing.assert_array_equal(found, whole.T)


def test_what_lies_on_the_host_is_not_looked_at(fake: FakeDevice) -> None:
    given: list[Any] = [np.ones(3), [1, 2], None, "text", fake.array([1.0])]
    found, places = arrays_on_host(given, "test")
    assert all(one is other for one, other in zip(found[:4], given[:4], strict=True))
    assert [place is None for place in places] == [True] * 4 + [False]
    data = np.arange(3)
    assert placed(data, None) is data


def test_the_order_of_streams(fake: FakeDevice) -> None:
    other = fake.stream(0)
    with fake.using(other):
        given = fake.array(np.zeros(3))
        given.set([1.0, 2, 3])
        (found,), (place,) = arrays_on_host([given], "test")
        assert found.tolist() == [1, 2, 3]
        data = 2 * found
        made = placed(data, place)
        data[:] = -1
        assert (made.peek().view(np.uint8) == 0xEE).all()  # the host has waited for nothing
        assert made.get().tolist() == [2, 4, 6]  # its stream has


def test_a_result_is_there_for_the_stream_of_the_argument_too(fake: FakeDevice) -> None:
    other = fake.stream(0)
    with fake.using(other):
        (found,), (place,) = arrays_on_host([fake.array(np.ones(3))], "test")
    before: list[str] = []
    fake.put(lambda: before.append("work of that stream"), other)
    made = placed(found, place)
    assert made.get().tolist() == [1, 1, 1]
    assert before  # its memory may have been that work's
    made = placed(found, place)
    fake.synchronize(other)
    assert made.peek().tolist() == [1, 1, 1]


def test_where_no_stream_is_named_the_host_waits(fake: FakeDevice) -> None:
    (found,), (place,) = arrays_on_host([fake.array(np.ones(3), ordered=False)], "test")
    assert placed(found, place).peek().tolist() == [1, 1, 1]


def test_memory_of_another_process_is_refused(fake: FakeDevice) -> None:
    foreign = FakeDevice().array(np.zeros(3))
    foreign._pointer += 1 << 40
    with pytest.raises(UsageError, match=r"test.*memory of no device of this process"):
        arrays_on_host([foreign], "test")


def test_types_that_the_devices_library_lacks_are_refused(fake: FakeDevice) -> None:
    with pytest.raises(UsageError, match=r"an array of datetime64\[s\] on a GPU"):
        arrays_on_host([fake.array(np.zeros(3, "M8[s]"))], "test")


def test_without_the_library_that_copies_arguments_are_wrong(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise Unavailable("CuPy", "install it")

    monkeypatch.setattr(array_interface, "cupy_runtime", missing)

    class Tensor(FakeArray):
        """In memory that no runtime here knows; DLPack calls it CUDA's."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    given = Tensor(fake, 1, (3,), (8,), np.dtype("f8"), 0, True)
    with pytest.raises(UsageError, match="an array on a GPU: CuPy"):
        arrays_on_host([given], "test")


@pytest.mark.parametrize("kind", [(2, 3), None])
def test_an_array_without_elements_lies_somewhere(
    monkeypatch: pytest.MonkeyPatch, kind: tuple[int, int] | None
) -> None:
    fake = FakeDevice()
    monkeypatch.setattr(array_interface, "may_have_arrays", lambda: True)
    monkeypatch.setattr(array_interface, "cupy_runtime", lambda: fake)
    monkeypatch.setattr(FakeDevice, "current", lambda _: 5)

    class Empty:
        """As CuPy's: its address is 0."""

        shape = (0, 4)
        dtype = np.dtype("f4")
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (0, 4), "typestr": "<f4", "data": (0, False), "version": 3, "stream": 1,
        }  # fmt: skip

    if kind is not None:
        monkeypatch.setattr(Empty, "__dlpack_device__", lambda _: kind, raising=False)
    (found,), (place,) = arrays_on_host([Empty()], "test")
    assert (found.shape, found.dtype.name) == ((0, 4), "float32")
    assert place is not None
    assert place.device == (5 if kind is None else 3)
