"""Gradients as vectors: short floats are added in float32, and forms are told apart."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from closeranks.collectives.coded.transport.gradient_layout import GradientLayout, weighted_sum
from closeranks.errors import UsageError


@pytest.mark.parametrize("dtype", ["f2", ">f2", ml_dtypes.bfloat16], ids=str)
def test_short_floats_are_added_in_float32(dtype: Any) -> None:
    gradient = [np.full((2, 3), 1.0).astype(dtype), np.ones(3, "f4"), np.ones((), dtype)]
    layout = GradientLayout.of(gradient)
    assert layout.element_types == [np.dtype(dtype), np.dtype("f4")]
    one, two = (layout.flats(np.zeros(layout.nbytes, np.uint8)) for _ in range(2))
    for number in range(4096):
        layout.add(one, gradient, 2.0 if number % 2 else 1.0, is_first=number == 0)
    layout.add(two, gradient, 0.5, is_first=True)
    total = layout.flats(np.zeros(layout.nbytes, np.uint8))
    weighted_sum(total, [(one, 1.0), (two, 2.0)])
    found = layout.unpack(total)
    for array, given in zip(found, gradient, strict=True):
        assert (array.dtype, array.shape) == (given.dtype, given.shape)
        assert (array == np.array(6145).astype(given.dtype)).all()


def test_an_array_is_no_list_of_it() -> None:
    array = np.ones(3)
    for first, later in ((array, [array]), ([array], array)):
        layout = GradientLayout.of(first)
        flats = layout.flats(np.zeros(layout.nbytes, np.uint8))
        with pytest.raises(UsageError, match="always"):
            layout.add(flats, later, 1.0, is_first=True)
        assert not flats[0].any()
