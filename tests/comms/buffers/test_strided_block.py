"""Canonical strided blocks: the same bytes in the same order, said in one way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from closeranks.comms.buffers.strided_block import StridedBlock, block, entries, of_array

SLICES = st.tuples(
    st.integers(-7, 7), st.integers(-7, 7), st.sampled_from([-3, -2, -1, 1, 2, 3])
).map(lambda three: slice(*three))
DIMENSIONS = st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=4)


@st.composite
def views(draw: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Cut a view out of an array, with the offset of each of its bytes."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    size = draw(st.sampled_from([1, 2, 3, 8]))
    at = np.arange(np.prod(shape) * size).reshape(*shape, size)
    whole = np.zeros(shape, f"V{size}")
    cuts = tuple(draw(SLICES) for _ in shape)
    order = draw(st.permutations(range(len(shape))))
    view, at = whole[cuts].transpose(order), at[cuts].transpose(*order, len(shape))
    if draw(st.booleans()):
        wider = (draw(st.integers(1, 3)), *view.shape)
        view, at = np.broadcast_to(view, wider), np.broadcast_to(at, (*wider, size))
    return view, at


def _naive(start: int, dimensions: list[tuple[int, int]], run: int) -> list[int]:
    """List the offsets of loops over runs, turn by turn."""
    places = [start]
    for count, stride in [*dimensions, (run, 1)]:
        places = [place + turn * stride for place in places for turn in range(count)]
    return places


@given(views())
def test_a_view_lists_its_bytes_in_the_order_of_numpy(
    case: tuple[NDArray[Any], NDArray[np.int64]],
) -> None:
    view, at = case
    found = of_array(view)
    assert found.nbytes == view.nbytes
    expected = at.reshape(-1)
    if expected.size:
        assert (found.offsets() == expected - expected[0]).all()


@given(st.integers(-5, 5), DIMENSIONS, st.integers(0, 4))
def test_the_canonical_form_lists_the_same_bytes(
    start: int, dimensions: list[tuple[int, int]], run: int
) -> None:
    assert block(start, dimensions, run).offsets().tolist() == _naive(start, dimensions, run)


@given(DIMENSIONS, st.integers(1, 4), DIMENSIONS, st.integers(1, 4))
def test_blocks_are_equal_where_their_bytes_are(
    ours: list[tuple[int, int]], run: int, theirs: list[tuple[int, int]], other: int
) -> None:
    same = _naive(0, ours, run) == _naive(0, theirs, other)
    assert (block(0, ours, run) == block(0, theirs, other)) == same


@given(DIMENSIONS, st.integers(1, 4), st.data())
def test_a_loop_cut_in_two_is_put_together(
    dimensions: list[tuple[int, int]], run: int, data: st.DataObject
) -> None:
    cut: list[tuple[int, int]] = []
    for count, stride in dimensions:
        part = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0] or [1]))
        cut += [(count // part, stride * part), (part, stride), (1, 77)]
    assert block(3, cut, run) == block(3, dimensions, run)


@given(DIMENSIONS, st.integers(1, 4))
def test_disjoint_is_never_wrong_about_yes(dimensions: list[tuple[int, int]], run: int) -> None:
    found = block(0, dimensions, run)
    if found.disjoint:
        assert len(np.unique(found.offsets())) == found.nbytes


def test_faces_of_a_cube() -> None:
    cube = np.zeros((256, 256, 256), np.float32)
    assert of_array(cube[3]) == StridedBlock(0, (), (), 1 << 18)
    assert of_array(cube[:, 3]) == StridedBlock(0, (256,), (1 << 18,), 1024)
    assert of_array(cube[:, :, 3]) == StridedBlock(0, (1 << 16,), (1024,), 4)
    assert of_array(cube[1:-1, 1:-1, 3]) == StridedBlock(0, (254, 254), (1 << 18, 1024), 4)
    assert of_array(cube[::-1, 0, 0]) == StridedBlock(0, (256,), (-(1 << 18),), 4)
    assert not of_array(np.broadcast_to(cube[:, 0, 0, None], (256, 9))).disjoint


@given(views(), st.data())
def test_entries_are_cut_by_rows_where_they_can(
    case: tuple[NDArray[Any], NDArray[np.int64]], data: st.DataObject
) -> None:
    view, at = case
    each = at.reshape(view.size, view.itemsize)
    first = data.draw(st.integers(0, view.size))
    count = data.draw(st.integers(0, view.size - first))
    found = entries(view, first, count)
    if found is not None:
        assert found.size == count
        shift = (found.ctypes.data - view.ctypes.data) if count else 0
        expected = each[first : first + count].reshape(-1)
        assert (of_array(found).offsets() + shift == expected - each[:1, :1].sum()).all()


@pytest.mark.parametrize(("first", "count", "shape"), [
    (0, 24, (2, 3, 4)), (12, 12, (1, 3, 4)), (4, 8, (2, 4)), (17, 3, (3,)), (3, 2, None),
])  # fmt: skip
def test_whole_rows_are_entries(first: int, count: int, shape: tuple[int, ...] | None) -> None:
    found = entries(np.zeros((2, 3, 8))[:, :, ::2], first, count)
    assert (None if found is None else found.shape) == shape


def test_entries_of_a_matrix() -> None:
    found = entries(np.arange(12).reshape(2, 6).view(np.matrix)[:, ::2], 4, 2)
    assert found is not None
    assert found.tolist() == [8, 10]
