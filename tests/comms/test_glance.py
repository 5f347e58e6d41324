"""What is told at a glance is what reading in full tells, or it is not told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from closeranks.comms.glance import blocks
from closeranks.comms.vector import vector
from closeranks.errors import UsageError

NOT_TOLD = (AttributeError, TypeError, ValueError)
DATA = np.zeros(12)
NUMBERS = st.lists(st.integers(-1, 6), min_size=2, max_size=4)
LISTED = NUMBERS | NUMBERS.map(np.array)
PLACED = st.tuples(LISTED, LISTED)
TYPES = st.sampled_from([MPI.DOUBLE, MPI.INT, MPI.DOUBLE_INT])
SPECS = st.one_of(
    LISTED.map(lambda counts: [DATA, counts]),
    PLACED.map(lambda pair: [DATA, pair]),
    st.tuples(LISTED | PLACED, TYPES).map(lambda rest: [DATA, *rest]),
    st.tuples(LISTED, LISTED, TYPES).map(lambda rest: [DATA, *rest]),
    st.just(DATA),
    st.just([DATA, MPI.DOUBLE]),
    st.none(),
)


@given(SPECS, st.integers(0, 2))
def test_it_is_what_reading_in_full_tells(spec: Any, rank: int) -> None:
    try:
        own, total = blocks(spec, rank, 3)
    except NOT_TOLD:
        return
    full = vector(spec, "Gatherv", 3)
    assert (own, total) == (full.sizes[rank], full.nbytes)


@pytest.mark.parametrize(
    "spec",
    [
        [DATA, [3, 4, 5]],
        [DATA, np.array([3, 4, 5])],
        [DATA, ([3, 4, 4], [0, 4, 8])],
        [DATA, [3, 4, 5], MPI.DOUBLE],
        [DATA, [3, 4, 4], [0, 4, 8], MPI.DOUBLE],
    ],
)
def test_common_forms_are_told(spec: Any) -> None:
    assert blocks(spec, 1, 3)[0] == 4 * 8


@pytest.mark.parametrize("counts", [[3, 4, 6], ([3, 4, 5], [0, 3, 8]), [3, -1, 2], [3, 4]])
def test_what_is_wrong_is_not_told(counts: Any) -> None:
    with pytest.raises(NOT_TOLD):
        blocks([DATA, counts], 0, 3)
    with pytest.raises(UsageError):
        vector([DATA, counts], "Gatherv", 3)
