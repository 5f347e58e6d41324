"""`SparseVector`: to dense, from dense and SciPy, and back; wrong arguments."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from closeranks.collectives.sparse import SparseVector
from closeranks.comms.gpu.array_interface import install
from closeranks.errors import UsageError
from tests.fake_device import FakeArray, FakeDevice


@pytest.mark.parametrize("kind", ["u1", "i2", "u4", "i8", "u8"])
def test_entries_of_equal_index_add_up(kind: str) -> None:
    vector = SparseVector(np.array([5, 2, 5], kind), np.array([1.0, 2.0, 4.0]), 7)
    assert vector.nnz == 3
    assert vector.indices.dtype == np.int64
    assert vector.to_dense().tolist() == [0, 0, 2, 0, 0, 5, 0]
    assert vector.to_scipy().toarray().tolist() == [[0, 0, 2, 0, 0, 5, 0]]


def test_rows() -> None:
    vector = SparseVector([3, 1], [[1, 2], [3, 4]], 4)
    assert vector.width == 2
    assert vector.to_dense().tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    assert vector.to_scipy().toarray().tolist() == vector.to_dense().tolist()


def test_from_dense() -> None:
    dense = np.array([0, 1.5, 0, np.nan, 0, 0, 0], np.float32)
    vector = SparseVector.from_dense(dense)
    assert vector.indices.tolist() == [1, 3]
    assert vector.values.dtype == np.float32
    np.testing.assert_array_equal(vector.to_dense(), dense)
    blocks = SparseVector.from_dense(dense, block=2)
    assert (blocks.length, blocks.indices.tolist()) == (4, [0, 1])
    np.testing.assert_array_equal(blocks.to_dense().reshape(-1)[:7], dense)


def test_the_last_block_is_padded() -> None:
    blocks = SparseVector.from_dense(np.arange(5), block=3)
    assert blocks.values.tolist() == [[0, 1, 2], [3, 4, 0]]


@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "coo_array", "csr_matrix"])
def test_from_scipy(kind: str) -> None:
    make = getattr(scipy.sparse, kind)
    dense = np.array([[0, 0], [3, 4], [0, 0], [1, 0]])
    rows = SparseVector.from_scipy(make(dense))
    assert rows.indices.tolist() == [1, 3]
    assert rows.to_dense().tolist() == dense.tolist()
    if "array" in kind and kind != "csc_array":  # which have one dimension too
        flat = SparseVector.from_scipy(make(np.array([0, 0, 7, 0])))
        assert (flat.length, flat.indices.tolist(), flat.values.tolist()) == (4, [2], [7])
    vector = SparseVector.from_scipy(make(np.array([[0, 7, 0]])))
    assert (vector.length, vector.indices.tolist(), vector.values.tolist()) == (3, [1], [7])


def test_empty_vectors() -> None:
    assert SparseVector([], [], 0).to_dense().shape == (0,)
    assert SparseVector([], np.empty((0, 3)), 5).to_dense().shape == (5, 3)
    assert SparseVector.from_dense([]).nnz == 0
    assert SparseVector([], [], 3).to_scipy().shape == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([-1], [1.0], 5), "index -1"),
        (([0, 5], [1.0, 2.0], 5), "index 5"),
        (([0.0], [1.0], 5), "float64"),
        (([[0]], [1.0], 5), "shape (1, 1)"),
        (([0, 1], [1.0], 5), "2 indices and 1 values"),
        (([0], [[[1.0]]], 5), "shape (1, 1, 1)"),
        (([0], [1.0], -1), "length"),
        (([0], [1.0], 2.5), "length"),
        (([0], [1.0], 2**62), "length"),
        (([0], [[]], 5), "width 0"),
        (([True], [1.0], 5), "bool"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, Any, Any], words: str) -> None:
    with pytest.raises(UsageError, match="SparseVector") as caught:
        SparseVector(*arguments)
    assert words in str(caught.value)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    runtime = FakeDevice()
    remove = install(runtime)
    yield runtime
    remove()


def values(array: Any) -> Any:
    return array.get() if isinstance(array, FakeArray) else array


@pytest.mark.parametrize("where", ["indices", "values", "both"])
@pytest.mark.parametrize("kind", ["i4", "i8", "u8"])
def test_arrays_on_devices_stay_there(fake: FakeDevice, where: str, kind: str) -> None:
    indices, rows = np.array([5, 2, 5], kind), np.arange(6, dtype=np.float32).reshape(3, 2)
    there: Any = fake.array(indices) if where != "values" else indices
    given: Any = fake.array(rows) if where != "indices" else rows
    vector = SparseVector(there, given, 7)
    assert (vector.nnz, vector.width, vector.dtype.name) == (3, 2, "float32")
    assert "3 of 7 entries of float32, rows of 2" in repr(vector)
    assert isinstance(vector.indices, FakeArray) == (where != "values")
    assert (vector.indices is there) == (kind == "i8")
    assert vector.values is given
    assert vector.indices.dtype == np.int64
    assert values(vector.indices).tolist() == [5, 2, 5]
    dense = vector.to_dense()
    assert isinstance(dense, FakeArray) == (where != "indices")
    np.testing.assert_array_equal(values(dense), SparseVector(indices, rows, 7).to_dense())
    with pytest.raises(UsageError, match="to_scipy: a vector on a GPU"):
        vector.to_scipy()


@pytest.mark.parametrize("block", [1, 2])
def test_from_dense_on_a_device(fake: FakeDevice, block: int) -> None:
    dense = np.array([0, 1.5, 0, np.nan, 0, 0, 0], np.float32)
    there: Any = fake.array(np.repeat(dense, 2))[::2]
    found, wanted = (SparseVector.from_dense(x, block) for x in (there, dense))
    assert isinstance(found.indices, FakeArray)
    assert isinstance(found.values, FakeArray)
    assert found.length == wanted.length
    np.testing.assert_array_equal(found.indices.get(), wanted.indices)
    np.testing.assert_array_equal(found.values.get(), wanted.values)


def test_empty_vectors_on_a_device(fake: FakeDevice) -> None:
    empty: Any = fake.array(np.empty((0, 3)))
    vector = SparseVector(fake.array([]), empty, 5)
    assert isinstance(vector.indices, FakeArray)
    assert vector.indices.dtype == np.int64
    dense: Any = vector.to_dense()
    assert (dense.shape, dense.get().any()) == ((5, 3), False)
    assert isinstance(SparseVector.from_dense(empty[:, 0]).values, FakeArray)


def test_wrong_arrays_on_a_device_are_named(fake: FakeDevice) -> None:
    elsewhere = FakeDevice().array([0])
    elsewhere._pointer += 1 << 40
    wrong: list[tuple[Any, Any, str]] = [
        (fake.array([0.0]), [1.0], "indices of float64"),
        (fake.array([0, 3]), [1.0, 2.0], "index 3 of a vector of length 3"),
        (fake.array([-1]), fake.array([1.0]), "index -1"),
        ([0], fake.array([1.0, 2.0]), "1 indices and 2 values"),
        ([0], fake.array([[[1.0]]]), r"values of shape \(1, 1, 1\)"),
        ([0], fake.array(np.empty((1, 0))), "width 0"),
        (elsewhere, [1.0], "memory of no device of this process"),
        ([0], elsewhere, "memory of no device of this process"),
    ]
    for indices, given, words in wrong:
        with pytest.raises(UsageError, match=f"SparseVector: .*{words}"):
            SparseVector(indices, given, 3)


def test_matrices_on_a_device_are_refused(fake: FakeDevice) -> None:
    on_device = SimpleNamespace(shape=(1, 3), data=fake.array([1.0]))
    on_device.tocoo = lambda: on_device
    with pytest.raises(UsageError, match=r"a matrix on a GPU.*give matrix.get\(\)"):
        SparseVector.from_scipy(on_device)


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(2, 2\)"):
        SparseVector.from_dense(np.ones((2, 2)))
    with pytest.raises(UsageError, match="no sparse matrix"):
        SparseVector.from_scipy(np.ones((2, 2)))


def test_ragged_lists_are_named() -> None:
    with pytest.raises(UsageError, match=r"SparseVector: values is .*rows of equal lengths"):
        SparseVector([0, 1], [[1.0], [2.0, 3.0]], 4)
    with pytest.raises(UsageError, match=r"SparseVector: indices is .*rows of equal lengths"):
        SparseVector([[0], [1, 2]], [1.0, 2.0], 4)
