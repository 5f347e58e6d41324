"""Reductions mean what MPI means by them."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.reduction.op import MEAN, Reducer, is_commutative, reducer
from closeranks.errors import UsageError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ARITHMETIC = (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX)
LOGICAL = (MPI.LAND, MPI.LOR, MPI.LXOR)
BITWISE = (MPI.BAND, MPI.BOR, MPI.BXOR)


#: All types of numbers that ml_dtypes has; some have letters of NumPy's.
SHORT = sorted(name for name, kind in vars(ml_dtypes).items()
               if isinstance(kind, type) and issubclass(kind, np.generic))  # fmt: skip


def operands(code: str) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(5)
    left, right = order.integers(0, 5, (2, 64))
    if code in "FDG":
        return (left + 1j * right).astype(code), (right - 2j * left).astype(code)
    return left.astype(code), right.astype(code)


def library(op: MPI.Op, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Give what MPI_Reduce_local leaves in the target."""
    expected = target.copy()
    op.Reduce_local(source.copy(), expected)
    return expected


def combined(made: Reducer, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    found, before = target.copy(), source.copy()
    made(source, found)
    np.testing.assert_array_equal(source, before)
    return found


@pytest.mark.parametrize(
    ("ops", "codes"),
    [
        (ARITHMETIC, "bBhHiIlLqQfdg"),
        ((MPI.SUM, MPI.PROD), "FD"),
        (LOGICAL, "bBhHiIlLqQ"),
        (BITWISE, "bBhHiIlLqQ"),
        (LOGICAL, "?"),
    ],
)
def test_the_same_bits_as_the_library(ops: tuple[MPI.Op, ...], codes: str) -> None:
    for op, code in product(ops, codes):
        source, target = operands(code)
        made = reducer(op, np.dtype(code))
        np.testing.assert_array_equal(
            combined(made, source, target), library(op, source, target), err_msg=f"{code}"
        )
        assert made.commutative


def test_integers_wrap_around() -> None:
    made = reducer(MPI.SUM, np.dtype("i1"))
    assert combined(made, np.array([100], "i1"), np.array([100], "i1")) == -56


def test_nan_wins() -> None:
    for op in (MPI.MIN, MPI.MAX):
        made = reducer(op, np.dtype("f8"))
        left = combined(made, np.array([np.nan, 1.0]), np.array([1.0, np.nan]))
        assert np.isnan(left).all()


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BFLOAT16])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_half_precision_goes_through_float32(dtype: np.dtype[Any], op: MPI.Op) -> None:
    order = np.random.default_rng(7)
    source, target = (order.normal(size=1000).astype(dtype) for _ in range(2))
    made = reducer(op, dtype)
    wide = library(op, source.astype("f4"), target.astype("f4"))
    np.testing.assert_array_equal(
        combined(made, source, target).astype("f4"), wide.astype(dtype).astype("f4")
    )


@pytest.mark.parametrize(
    ("datatype", "fields"),
    [(MPI.DOUBLE_INT, "f8,i4"), (MPI.FLOAT_INT, "f4,i4"), (MPI.INT_INT, "i4,i4")],
)
def test_pairs_are_left_to_the_library(datatype: MPI.Datatype, fields: str) -> None:
    dtype = np.dtype(fields, align=True)
    source, target = np.zeros(3, dtype), np.zeros(3, dtype)
    source["f0"], source["f1"] = [1, 5, 3], [0, 0, 0]
    target["f0"], target["f1"] = [2, 4, 3], [1, 1, 1]
    made = reducer(MPI.MINLOC, datatype)
    assert made.op == MPI.MINLOC
    assert made.datatype == datatype
    made(source, target)
    assert target["f0"].tolist() == [1, 4, 3]
    assert target["f1"].tolist() == [0, 1, 0]


def test_a_users_op_keeps_its_sides() -> None:
    def minus(source: Any, target: Any, _: MPI.Datatype) -> None:
        left, right = np.frombuffer(source, "i4"), np.frombuffer(target, "i4")
        right[:] = left - right

    op = MPI.Op.Create(minus, commute=False)
    made = reducer(op, np.dtype("i4"))
    assert not made.commutative
    assert not is_commutative(op)
    found = combined(made, np.array([10, 20], "i4"), np.array([1, 2], "i4"))
    assert found.tolist() == [9, 18]
    op.Free()


def test_the_mean_adds_and_wants_floats() -> None:
    assert repr(MEAN) == "closeranks.MEAN"
    assert is_commutative(MEAN)
    assert combined(reducer(MEAN, np.dtype("f4")), np.ones(2, "f4"), np.ones(2, "f4"))[0] == 2
    reducer(MEAN, BFLOAT16)
    reducer(MEAN, np.dtype("c8"))
    with pytest.raises(UsageError, match="int32"):
        reducer(MEAN, np.dtype("i4"))


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(MPI.BAND, "f4"), (MPI.SUM, "?"), (MPI.MAX, "c8"), (MPI.LAND, "f8"), (MPI.MINLOC, "f4")],
)
def test_what_mpi_does_not_define_is_refused(op: MPI.Op, dtype: str) -> None:
    with pytest.raises(UsageError, match="not defined"):
        reducer(op, np.dtype(dtype))


def test_a_bfloat16_has_no_name_in_mpi() -> None:
    made = reducer(MPI.SUM, BFLOAT16)
    assert made.op is None
    assert made.datatype is None
    with pytest.raises(UsageError, match="bfloat16"):
        reducer(MPI.MINLOC, BFLOAT16)


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("op", [MPI.SUM, MPI.MAX], ids=["sum", "max"])
def test_short_numbers_are_combined_as_what_they_are(
    comm: MPI.Intracomm, op: MPI.Op, name: str
) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    ufunc = np.add if op == MPI.SUM else np.maximum
    parts = [np.arange(rank % 2, rank % 2 + 40).astype(dtype) for rank in range(comm.size)]
    expected = np.empty(0, dtype)
    with suppress(TypeError):  # the type has no such op
        if ufunc(parts[0], parts[0]).dtype == dtype:
            expected = reduce(ufunc, parts)
    with cr.init(comm) as ours:
        for algorithm in ("auto", "ring"):
            found = np.zeros(40, dtype)
            if not expected.size:
                with pytest.raises(UsageError, match="not defined"):
                    ours.Allreduce(parts[comm.rank], found, op=op, algorithm=algorithm)
                continue
            ours.Allreduce(parts[comm.rank], found, op=op, algorithm=algorithm)
            if comm.size <= 2 or op == MPI.MAX:  # of more the order of a sum counts
                np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring"])
def test_arrays_that_were_sent_are_as_good_as_others(comm: MPI.Intracomm, algorithm: str) -> None:
    with cr.init(comm) as ours:
        for count in (3, 20_000):
            given = ours.bcast(np.arange(count, dtype=float))  # its type is a copy elsewhere
            ours.Allreduce(MPI.IN_PLACE, given, algorithm=algorithm)
            np.testing.assert_array_equal(given, np.arange(count) * comm.size)
