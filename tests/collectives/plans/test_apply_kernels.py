"""Kernels are pure functions of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.plans.apply_kernels import KERNELS, kernel


def test_sum_of_what_has_arrived() -> None:
    blocks = [np.full(3, 10.0**power) for power in range(3)]
    total = np.full(3, -1.0)
    KERNELS["sum_arrived"](np.array([True, False, True]), *blocks, total)
    assert total.tolist() == [101.0] * 3


def test_offsets_are_the_exclusive_prefix_sum() -> None:
    starts = np.full(4, -1)
    assert KERNELS["offsets"](np.array([3, 0, 2, 1]), starts) == 6
    assert starts.tolist() == [0, 3, 3, 5]
    assert KERNELS["offsets"](np.zeros(0, np.int64), np.zeros(0, np.int64)) == 0


def test_numbers_become_registers() -> None:
    assert KERNELS["numbers"](np.array([4, 2])) == (4, 2)


def test_a_name_is_given_once() -> None:
    with pytest.raises(AssertionError, match="offsets"):
        kernel("offsets")(KERNELS["numbers"])
