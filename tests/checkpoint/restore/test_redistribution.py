"""The old shards that a new shard is put together from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.restore.redistribution import IndexBox, Intersection, intersections

#: Three ranks that have saved an array of 12 rows; the picture in `intersections`.
OLDS = [(rank, IndexBox((4 * rank, 0), (4, 5))) for rank in range(3)]


def test_as_in_the_picture() -> None:
    assert intersections(IndexBox((0, 0), (6, 5)), OLDS) == [
        Intersection(0, OLDS[0][1], IndexBox((0, 0), (4, 5))),
        Intersection(1, OLDS[1][1], IndexBox((4, 0), (2, 5))),
    ]
    assert intersections(IndexBox((6, 0), (6, 5)), OLDS) == [
        Intersection(1, OLDS[1][1], IndexBox((6, 0), (2, 5))),
        Intersection(2, OLDS[2][1], IndexBox((8, 0), (4, 5))),
    ]


def test_of_ranks_with_the_same_shard_the_first_counts() -> None:
    twice = [(rank, IndexBox((0,), (9,))) for rank in range(4)]
    assert intersections(IndexBox((3,), (2,)), twice) == [
        Intersection(0, IndexBox((0,), (9,)), IndexBox((3,), (2,)))
    ]


def test_an_array_without_axes_is_one_box() -> None:
    assert intersections(IndexBox((), ()), [(2, IndexBox((), ()))]) == [
        Intersection(2, IndexBox((), ()), IndexBox((), ()))
    ]


@st.composite
def _boxes(draw: st.DrawFn) -> IndexBox:
    offset = tuple(draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
    return IndexBox(offset, tuple(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))))


@given(_boxes(), st.lists(_boxes(), max_size=5))
def test_every_element_that_both_have_is_in_one(box: IndexBox, olds: list[IndexBox]) -> None:
    def mask(of: IndexBox) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        cells = np.zeros((12, 12), bool)
        cells[tuple(slice(a, a + n) for a, n in zip(*of, strict=True))] = True
        return cells

    met = intersections(box, enumerate(olds))
    for one in met:
        assert one.theirs == olds[one.old]
        assert np.array_equal(mask(one.overlap), mask(box) & mask(one.theirs))
    both = [theirs for theirs in olds if (mask(box) & mask(theirs)).any()]
    assert {one.theirs for one in met} == set(both)
