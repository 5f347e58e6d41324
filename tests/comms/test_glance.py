"""What is told at a glance is what reading in full tells, or it is not told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from closeranks.comms.glance import Glance
from closeranks.comms.vector import vector
from closeranks.errors import UsageError

NOT_TOLD = (AttributeError, TypeError, ValueError)
DATA, BLOCK = np.zeros(12), np.zeros(4)
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
    st.just(np.zeros((2, 3), int)),
    st.just([DATA, MPI.DOUBLE]),
    st.none(),
)


@given(st.lists(SPECS, max_size=4), st.integers(0, 2))
def test_it_is_what_reading_in_full_tells(specs: list[Any], rank: int) -> None:
    glance = Glance(rank, 3)
    for spec in (*specs, *specs):
        try:
            fits = glance.fits(spec, BLOCK)
        except NOT_TOLD:
            continue
        full = vector(spec, "Gatherv", 3)
        assert (glance.own, glance.total) == (full.sizes[rank], full.nbytes)
        assert fits == (glance.own == BLOCK.nbytes)


def test_a_list_that_was_changed_is_read_again() -> None:
    glance, counts = Glance(0, 3), [3, 4, 5]
    assert glance.fits([DATA, counts], DATA[:3])
    counts[0] = 2
    assert glance.fits([DATA, counts], DATA[:2])
    assert glance.fits([DATA[:11], counts], DATA[:2])
    with pytest.raises(NOT_TOLD):
        glance.fits([DATA[:10], counts], DATA[:2])
    assert glance.fits([np.zeros(12, np.float32), counts], DATA[:1])
    places = ([2, 4, 5], [0, 2, 6])
    assert glance.fits([DATA, places], DATA[:2])
    places[1][2] = 8
    with pytest.raises(NOT_TOLD):
        glance.fits([DATA, places], DATA[:2])


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
    assert Glance(1, 3).fits(spec, BLOCK)


@pytest.mark.parametrize("counts", [[3, 4, 6], ([3, 4, 5], [0, 3, 8]), [3, -1, 2], [3, 4]])
def test_what_is_wrong_is_not_told(counts: Any) -> None:
    with pytest.raises(NOT_TOLD):
        Glance(0, 3).read([DATA, counts])
    with pytest.raises(UsageError):
        vector([DATA, counts], "Gatherv", 3)
