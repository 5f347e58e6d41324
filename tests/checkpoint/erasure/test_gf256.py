"""The field of 256 elements, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.checkpoint.erasure.generator_matrix import (
    EXP,
    INVERSES,
    POLYNOMIAL,
    PRODUCTS,
    invert,
    matmul,
)
from closeranks.errors import CodeError


def by_hand(left: int, right: int) -> int:
    """Multiply polynomials bit by bit, and reduce."""
    product = 0
    for bit in range(8):
        if right >> bit & 1:
            product ^= left << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= POLYNOMIAL << (bit - 8)
    return product


def test_products_are_those_of_polynomials() -> None:
    expected = [[by_hand(left, right) for right in range(256)] for left in range(256)]
    assert np.array_equal(PRODUCTS, np.array(expected, np.uint8))


def test_two_generates_all_but_zero() -> None:
    assert sorted(EXP.tolist()) == list(range(1, 256))
    assert all(EXP[n + 1] == by_hand(int(EXP[n]), 2) for n in range(254))


def test_inverses_are_inverses() -> None:
    numbers = np.arange(1, 256)
    assert (PRODUCTS[numbers, INVERSES[numbers]] == 1).all()


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_a_matrix_times_its_inverse_is_one(n: int) -> None:
    rng = np.random.default_rng(n)
    matrix = rng.integers(0, 256, (n, n), dtype=np.uint8)
    matrix[0, 0] = 0  # so rows have to be swapped
    if n == 1:
        matrix[0, 0] = 7
    assert np.array_equal(matmul(matrix, invert(matrix)), np.eye(n, dtype=np.uint8))


def test_what_has_no_inverse_is_refused() -> None:
    matrix = np.array([[1, 2], [2, 4]], np.uint8)  # twice the first row
    with pytest.raises(CodeError, match="2 rows has rank 1 or less"):
        invert(matrix)
