"""Kernels on rows: what they gather, and how they combine."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_message import OPS, TYPES
from closeranks.collectives.pairs.row_kernels import row_combine, row_pick, run_combine, run_pick


def raw(values: object, dtype: str) -> NDArray[np.uint8]:
    return np.array(values, dtype).reshape(-1).view(np.uint8)


def test_rows_of_any_size_and_place_are_gathered() -> None:
    for size in (1, 3, 8, 24):
        data = np.arange(5 * size + 1).astype(np.uint8)[1:]  # of an odd address
        out = np.empty(3 * size, np.uint8)
        row_pick(np.array([4, 0, 4]), data, out)
        rows = data.reshape(5, size)
        assert (out.reshape(3, size) == rows[[4, 0, 4]]).all()


def test_runs_are_gathered() -> None:
    out = np.empty(5, np.uint8)
    run_pick(np.array([7, 0]), np.array([2, 3]), np.arange(9).astype(np.uint8), out)
    assert out.tolist() == [7, 8, 0, 1, 2]


def head(op: str, dtype: str, *counts: int) -> NDArray[np.int64]:
    return np.array([OPS.index(op), TYPES.index(dtype), *counts])


def test_a_row_that_nobody_has_is_zero() -> None:
    out = np.full(3 * 8, 255, np.uint8)
    where = np.array([2, 2])
    row_combine(head("MIN", "float64", 3, 1, 1), where, raw([5.0], "f8"), raw([4.0], "f8"), out)
    assert out.view("f8").tolist() == [0, 0, 4]


@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX"])
def test_a_nan_wins_on_either_side(op: str) -> None:
    out, nan = np.empty(16, np.uint8), float("nan")
    parts = raw([[1.0], [nan]], "f8"), raw([[nan], [1.0]], "f8")
    row_combine(head(op, "float64", 2, 2, 2), np.array([0, 1, 0, 1]), *parts, out)
    assert np.isnan(out.view("f8")).all()


def test_operands_are_taken_in_their_order() -> None:
    out = np.empty(4, np.uint8)
    terms = [raw([x], "f4") for x in (1e8, -1e8, 1.0)]
    row_combine(head("SUM", "float32", 1, 1, 1, 1), np.zeros(3, np.int64), *terms, out)
    assert out.view("f4").tolist() == [1.0]


def test_rows_of_unlike_types() -> None:
    sizes, types = np.array([8, 3]), np.array([TYPES.index("float64"), TYPES.index("int8")])
    first = np.concatenate([raw([1.5], "f8"), raw([1, 2, 3], "i1")])
    out = np.empty(11, np.uint8)
    where = np.array([0, 1, 1])
    run_combine(head("SUM", "int8", 2, 2, 1), where, types, sizes, first, raw([9] * 3, "i1"), out)
    assert out[:8].view("f8").tolist() == [1.5]
    assert out[8:].view("i1").tolist() == [10, 11, 12]
