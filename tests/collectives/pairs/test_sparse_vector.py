"""`SparseVector`: to dense, from dense and SciPy, and back; wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from closeranks.collectives.sparse import SparseVector
from closeranks.errors import UsageError


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


def test_arrays_on_a_gpu_are_refused() -> None:
    class OnDevice:
        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            return {"shape": (1,)}

    device: Any = OnDevice()
    for indices, values in (([0], device), (device, [1.0])):
        with pytest.raises(UsageError, match="on a GPU"):
            SparseVector(indices, values, 3)


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
