"""Parity matrices: every square part can be inverted."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from closeranks.checkpoint.erasure.generator_matrix import (
    EXP,
    MOST_PARITY,
    Bytes,
    invert,
    parity_matrix,
)
from closeranks.errors import CodeError, UsageError


@pytest.mark.parametrize(
    ("data", "parity", "name"),
    [
        (data, parity, name)
        for name in MOST_PARITY
        for data in range(1, 9)
        for parity in range(1, min(MOST_PARITY[name], 4) + 1)
    ],
)
def test_every_square_part_of_a_small_one_can_be_inverted(
    data: int, parity: int, name: str
) -> None:
    matrix = parity_matrix(data, parity, name)
    assert (matrix[0] == 1).all()
    for size in range(1, min(data, parity) + 1):
        for rows in combinations(range(parity), size):
            for columns in combinations(range(data), size):
                invert(matrix[np.ix_(rows, columns)])


@pytest.mark.parametrize(
    ("data", "parity"), [(252, 3), (253, 2), (254, 1), (200, 55), (128, 127), (4, 251), (60, 12)]
)
def test_so_can_samples_of_large_ones(data: int, parity: int) -> None:
    matrix, rng = parity_matrix(data, parity), np.random.default_rng(data)
    assert matrix.shape == (parity, data)
    assert matrix.all()
    for _ in range(200):
        size = int(rng.integers(1, min(data, parity, 24) + 1))
        rows = rng.choice(parity, size, replace=False)
        columns = rng.choice(data, size, replace=False)
        invert(matrix[np.ix_(rows, columns)])


def test_powers_alone_would_not_do_for_more_parities() -> None:
    """Why ``auto`` takes Cauchy's matrix beyond three: ISA-L warns of it, too."""
    powers = EXP[np.arange(4)[:, None] * np.arange(30) % 255]
    with pytest.raises(CodeError):
        check_parts_of_three(powers)
    check_parts_of_three(powers[:3, :20])


def check_parts_of_three(matrix: Bytes) -> None:
    """Invert every part of three rows and columns."""
    for rows in combinations(range(len(matrix)), 3):
        for columns in combinations(range(matrix.shape[1]), 3):
            invert(matrix[np.ix_(rows, columns)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1), "0 data and 1 parity blocks; take at least one of each, at most 255 together"),
        ((1, 0), "1 data and 0 parity"),
        ((200, 56), "at most 255"),
        ((4, 2, "xor"), "2 parity blocks, the matrix 'xor' has at most 1; take cauchy"),
        ((4, 4, "power"), "at most 3"),
        ((4, 2, "magic"), "unknown matrix 'magic'; choose xor, power, cauchy"),
    ],
)
def test_there_is_no_such_code(arguments: tuple[int, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parity_matrix(*arguments)
