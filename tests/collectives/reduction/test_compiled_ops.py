"""Combiners do bit for bit what the reducers of the reference do."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.reduction.compiled_ops import combiner
from closeranks.collectives.reduction.op import MEAN, reducer
from closeranks.comms.buffers.datatype import is_of_numpy

OPS = ("SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR")
DTYPES = [np.dtype(char) for char in "?bBhHiIlLfdFD"] + [
    np.dtype(np.float16),
    np.dtype(ml_dtypes.bfloat16),
]
LENGTHS = (0, 1, 7, 1000)


def numbers(dtype: np.dtype[Any], n: int, seed: int) -> Any:
    """Numbers of a type, zeros and NaN among them."""
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, n).astype(dtype)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return random.integers(low, high, n, dtype, endpoint=True) * random.integers(
            0, 2, n
        ).astype(dtype)
    found = random.normal(0, 3, n)
    if dtype.kind == "c":
        return (found + 1j * random.normal(0, 3, n)).astype(dtype)
    found[random.integers(0, 10, n) == 0] = np.nan
    found[random.integers(0, 10, n) == 0] = 1e9
    with np.errstate(over="ignore"):
        return found.astype(dtype)


def call(address: int, *arrays: Any) -> None:
    """Call a combiner's function as C would."""
    types = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64]
    ctypes.CFUNCTYPE(None, *types)(address)(*(a.ctypes.data for a in arrays), len(arrays[0]))


@pytest.mark.share(3)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", OPS)
def test_it_does_what_the_reducer_does(name: str, dtype: np.dtype[Any]) -> None:
    op = getattr(MPI, name)
    found = combiner(op, dtype)
    if found is None:
        return
    combine = reducer(op, dtype)
    for n in LENGTHS:
        source, target = numbers(dtype, n, 1), numbers(dtype, n, 2)
        expected, pair, three = target.copy(), target.copy(), np.empty_like(target)
        combine(source, expected)
        call(found.pair, source, pair)
        call(found.three, source, target, three)
        for got in (pair, three):
            if dtype.kind in "biu":
                assert got.tobytes() == expected.tobytes()
            elif dtype.kind == "c" and name == "PROD":
                np.testing.assert_allclose(got, expected, 1e-5)
            else:
                there = ~np.isnan(expected.astype(complex))
                assert got[there].tobytes() == expected[there].tobytes()
                assert np.isnan(got[~there].astype(complex)).all()


def test_every_predefined_op_of_common_types_has_one() -> None:
    for name in OPS:
        assert combiner(getattr(MPI, name), np.dtype(np.int64)) is not None
    for dtype in DTYPES[-6:]:
        assert combiner(MPI.SUM, dtype) is not None
    assert combiner(MEAN, np.dtype(np.float32)) == combiner(MPI.SUM, np.dtype(np.float32))


def test_there_is_none_for_what_only_the_library_knows() -> None:
    own = MPI.Op.Create(lambda _first, _second, _type: None)
    assert combiner(own, np.dtype(np.float32)) is None
    own.Free()
    assert combiner(MPI.SUM, np.dtype(">f4")) is None
    assert combiner(MPI.BAND, np.dtype(np.float32)) is None


def test_a_copy_of_a_type_is_that_type() -> None:
    for dtype in DTYPES:
        copied = pickle.loads(pickle.dumps(dtype.newbyteorder("="))), dtype.newbyteorder("=")
        for copy in (*copied, np.dtype(dtype, copy=True)):
            assert is_of_numpy(copy) == is_of_numpy(dtype) == (dtype.name != "bfloat16"), dtype
            assert (combiner(MPI.MAX, copy) is None) == (combiner(MPI.MAX, dtype) is None)


def test_no_other_type_is_taken_for_one_with_its_letter() -> None:
    for name, kind in vars(ml_dtypes).items():
        if isinstance(kind, type) and issubclass(kind, np.generic) and name != "bfloat16":
            assert combiner(MPI.SUM, np.dtype(kind)) is None, name
