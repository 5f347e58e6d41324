"""Pieces of a box."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.partitioning.redistribution.box_pieces import cut, piece


@pytest.mark.parametrize(
    "box", [(), ((3, 8),), ((0, 3), (2, 9)), ((1, 4), (0, 1), (5, 12)), ((2, 2), (0, 3))]
)
def test_pieces_make_up_a_box_in_order(box: tuple[tuple[int, int], ...]) -> None:
    numbers = np.arange(20 ** len(box)).reshape((20,) * len(box))
    whole = numbers[tuple(slice(*one) for one in box)].reshape(-1)
    for most in range(1, 30):
        how = cut(box, most)
        found = [piece(box, most, n) for n in range(how.pieces)]
        assert piece(box, most, how.pieces) is None
        parts = [numbers[tuple(slice(*one) for one in some or ())].reshape(-1) for some in found]
        assert all(0 < part.size <= most for part in parts)
        assert np.array_equal(np.concatenate([*parts, whole[:0]]), whole)
