"""Buffer specifications: what mpi4py reads, and what it does not."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.comms.buffers.array_memory import memory
from closeranks.comms.buffers.buffer_spec import message, vector
from closeranks.errors import UsageError


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match="float is no buffer"):
        memory(1.0, "Bcast")
    with pytest.raises(UsageError, match="Python objects"):
        memory(np.array([None]), "Bcast")
    with pytest.raises(UsageError, match="read-only"):
        memory(b"fixed", "Bcast", writable=True)


class _Capsule:
    """An array that only DLPack sees."""

    def __init__(self, inner: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        self.inner = inner

    def __dlpack__(self, **options: Any) -> object:
        return self.inner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class _Interface:
    """Host memory behind the CUDA array interface."""

    def __init__(self, inner: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        self.inner = inner
        self.__cuda_array_interface__ = inner.__array_interface__ | {"version": 2, "strides": None}


@pytest.mark.parametrize("wrap", [_Capsule, _Interface])
def test_foreign_arrays_are_seen_where_they_lie(wrap: type) -> None:
    x = np.arange(4, dtype=np.float32)
    found = memory(wrap(x), "Bcast", writable=True)
    assert found.dtype == np.float32
    found.data.view(np.float32)[1] = 9
    assert x[1] == 9


def test_counts_and_displacements_as_mpi4py_reads_them() -> None:
    x = np.arange(12.0)
    for spec, count, offset in [
        (x, 12, 0),
        ([x, 5], 5, 0),
        ([x, MPI.DOUBLE], 12, 0),
        ([x, "d"], 12, 0),
        ([x, 5, MPI.DOUBLE], 5, 0),
        ([x, (5, 2), MPI.DOUBLE], 5, 16),
        ((x, 5, 2, MPI.DOUBLE), 5, 16),
        ([x, None, MPI.BYTE], 96, 0),
    ]:
        found = message(spec, "Bcast")
        assert (found.count, found.offset) == (count, offset)
        assert np.shares_memory(found.data(), x)


def test_blocks_divide_what_is_inferred_and_multiply_what_is_given() -> None:
    x = np.arange(12.0)
    assert message(x, "Gather", blocks=3).count == 12
    assert message([x, 2], "Gather", blocks=3).count == 6
    with pytest.raises(UsageError, match="12 entries do not divide into 5 blocks"):
        message(x, "Gather", blocks=5)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ([np.ones(3), 4], "4 entries of float64 take bytes 0 to 32 of 24"),
        ([np.ones(3), (2, 2), MPI.DOUBLE], "bytes 16 to 32 of 24"),
        ([np.ones(3), -1], "count -1 is negative"),
        ([np.ones(3), 1.5], "count 1.5 is no integer"),
        ([np.ones(3), "nonsense"], "no MPI datatype has the code 'nonsense'"),
        ([np.ones(3, "b"), MPI.INT], "3 bytes hold no whole number of int32"),
        ([np.ones(3)], "a message of 1 parts"),
        (None, "None where a buffer is needed"),
    ],
)
def test_bad_specifications_say_what_is_wrong(spec: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        message(spec, "Bcast")


def test_errors_are_of_the_class_that_mpi4py_raises() -> None:
    with pytest.raises(KeyError, match="no MPI datatype has the code"):
        message([np.ones(3), "nonsense"], "Test")
    for spec in (3.0, [[1, 2], 2, "i"], [np.ones(3), 1.5, "d"]):
        with pytest.raises(TypeError):
            message(spec, "Test")
    with pytest.raises(TypeError, match="counts of type float64"):
        vector([np.ones(3), np.array([1.5])], "Test", 1)


def _make(comm: cr.Communicator, name: str, arguments: Any, *, form: str, algorithm: str) -> None:
    method = f"I{name.lower()}" if form == "I" else f"{name}{form}"
    request = getattr(comm, method)(*arguments, algorithm=algorithm)
    if form == "_init":
        request.Start()
    if form:
        request.Wait()
    if form == "_init":
        request.close()


@pytest.mark.parametrize("form", ["", "I", "_init"])
@pytest.mark.parametrize("algorithm", ["auto", "native", "linear"])
def test_none_in_a_list_is_an_empty_buffer(comm: MPI.Intracomm, form: str, algorithm: str) -> None:
    """Where nobody has anything, and where one rank alone has."""
    nothing, nothings = [None, 0, MPI.INT], [None, (0, None), MPI.INT]
    with cr.init(comm) as opened:
        make = partial(_make, opened, form=form, algorithm=algorithm)
        for _ in range(3):
            make("Gather", (nothing, nothing))
            make("Alltoall", (nothing, nothing))
            make("Alltoallv", (nothings, nothings))
            make("Scatterv", (nothings, nothing))
            taken, counts = np.zeros(2), [2] + [0] * (opened.size - 1)
            sent = np.full(2, 7.0) if opened.rank == 0 else [None, MPI.DOUBLE]
            make("Gatherv", (sent, [taken, counts, MPI.DOUBLE]))
            assert taken.tolist() == [7 * (opened.rank == 0)] * 2


def test_arrays_with_gaps_go_through_a_copy() -> None:
    x = np.arange(12.0).reshape(3, 4)
    found = message(x[:, 1], "Bcast", writable=True)
    assert found.foreign
    assert found.data().view(float).tolist() == [1, 5, 9]
    found.store(np.array([-1.0, -5, -9]).view(np.uint8))
    assert x[:, 1].tolist() == [-1, -5, -9]
    assert x[:, 0].tolist() == [0, 4, 8]


def test_derived_datatypes_are_packed() -> None:
    every_other = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    x = np.arange(5.0)
    found = message([x, 1, every_other], "Bcast", writable=True)
    assert found.data().view(float).tolist() == [0, 2, 4]
    found.store(np.zeros(24, np.uint8))
    assert x.tolist() == [0, 1, 0, 3, 0]
    with pytest.raises(UsageError, match="take bytes 0 to 40 of 32"):
        message([x[:4], 1, every_other], "Bcast")
    every_other.Free()


def test_vectors_with_displacements() -> None:
    x = np.arange(10, dtype=np.int32)
    found = vector([x, ([2, 1, 0], [5, 0, 9]), MPI.INT], "Gatherv", 3, writable=True)
    assert not found.direct
    assert found.data().view(np.int32).tolist() == [5, 6, 0]
    found.store(np.array([-5, -6, -1], np.int32).view(np.uint8))
    assert x.tolist() == [-1, 1, 2, 3, 4, -5, -6, 7, 8, 9]


def test_vectors_side_by_side_are_not_copied() -> None:
    x = np.arange(6, dtype=np.int32)
    for spec in (x, [x, 2], [x, [3, 1, 2]], [x, ([3, 1, 2], None)], [x, (2, 2), MPI.INT]):
        found = vector(spec, "Gatherv", 3)
        assert found.direct
        assert np.shares_memory(found.data(), x)
    assert vector(np.arange(5), "Gatherv", 3).counts.tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ([np.ones(3), [1, 1]], "2 counts for 3 ranks"),
        ([np.ones(3), [1, 1, -1]], "counts -1 is negative"),
        ([np.ones(3), [1, 1, 2]], "block 2: 2 entries of float64 take bytes 16 to 32 of 24"),
        ([np.ones(3), ([1, 1, 1], [0, 1, 3])], "block 2: 1 entries"),
        ([np.ones(3), [0.5, 1, 1]], "counts of type float64"),
    ],
)
def test_bad_vectors_say_what_is_wrong(spec: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        vector(spec, "Gatherv", 3)


def test_bfloat16_is_bytes_to_mpi() -> None:
    found = message(np.ones(3, ml_dtypes.bfloat16), "Bcast")
    assert found.foreign
    assert found.direct
    assert (found.count, found.nbytes) == (3, 6)
