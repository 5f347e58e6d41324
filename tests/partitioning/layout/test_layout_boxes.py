"""Layouts: the parts are those of ``np.array_split``, nested as the mesh is."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint import Shard
from closeranks.errors import UsageError
from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split

#: Without types: they refuse what the calls are to refuse.
LAYOUT: Any = Layout
PARTIAL: Any = Partial
SPLIT: Any = Split
GRID = Mesh({"a": 2, "b": 3})


def _parts(array: np.ndarray[Any, Any], layout: Layout, rank: int) -> np.ndarray[Any, Any]:
    """Split a global array axis by axis of the mesh, as the definition says."""
    for at, size, how in zip(
        layout.mesh.coordinates(rank), layout.mesh.axes.values(), layout.placements, strict=True
    ):
        if isinstance(how, Split):
            array = np.array_split(array, size, how.axis)[at]
    return array


_HOW = st.sampled_from([Split(0), Split(1), Split(-1), Broadcast(), Partial()])


@given(st.lists(st.tuples(st.integers(1, 4), _HOW), min_size=1, max_size=3),
       st.tuples(st.integers(0, 13), st.integers(0, 7)),
       st.randoms(use_true_random=False))  # fmt: skip
def test_parts_are_those_of_array_split(axes: Any, shape: tuple[int, int], random: Any) -> None:
    sizes = {f"x{n}": size for n, (size, _) in enumerate(axes)}
    order = list(range(int(np.prod(list(sizes.values())))))
    random.shuffle(order)
    layout = Layout(shape, [how for _, how in axes], mesh=Mesh(sizes, order=order))
    whole = np.arange(np.prod(shape)).reshape(shape)
    for rank in range(layout.mesh.size):
        right = _parts(whole, layout, rank)
        assert np.array_equal(whole[layout.box(rank)], right)
        assert layout.local_shape(rank) == right.shape
        shard = Shard(right, layout.global_shape, layout.offset(rank))
        assert shard.offset == layout.offset(rank)
    assert layout == pickle.loads(pickle.dumps(layout))


def test_uneven_parts() -> None:
    layout = Layout((10, 4), [Split(0), Split(0)], mesh=GRID, cuts={0: [0, 0, 1, 5, 5, 9, 10]})
    assert [layout.box(rank)[0] for rank in range(6)] == [
        slice(0, 0), slice(0, 1), slice(1, 5), slice(5, 5), slice(5, 9), slice(9, 10)
    ]  # fmt: skip
    assert layout == pickle.loads(pickle.dumps(layout))
    assert layout != Layout((10, 4), [Split(0), Split(0)], mesh=GRID)
    assert "cuts={0: [0, 0, 1, 5, 5, 9, 10]}" in repr(layout)
    even = Layout((10, 4), [Split(0), Broadcast()], mesh=GRID)
    assert even == Layout((10, 4), [Split(-2), Broadcast()], mesh=GRID, cuts={-2: [0, 5, 10]})


def test_an_axis_of_any_integer_type_is_said_alike() -> None:
    layout = Layout((10, 4), [SPLIT(np.int64(0)), Broadcast()], mesh=GRID)
    assert repr(layout) == repr(Layout((10, 4), [Split(0), Broadcast()], mesh=GRID))


def test_an_array_without_axes_is_held_by_all() -> None:
    layout = Layout((), [Broadcast(), Partial("max")], mesh=GRID)
    assert [layout.box(3), layout.offset(3), layout.local_shape(3)] == [(), (), ()]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LAYOUT((4, 4), [Split(0)], mesh=GRID), "1 placements"),
        (lambda: LAYOUT((4, 4), [Split(0)] * 3, mesh=GRID), "3 placements"),
        (lambda: LAYOUT((4, 4), [Split(0), Split(2)], mesh=GRID), "Split(axis=2)"),
        (lambda: LAYOUT((4, 4), [Split(0), Split(-3)], mesh=GRID), "Split(axis=-3)"),
        (lambda: LAYOUT((4, 4), [Split(0), "b"], mesh=GRID), "'b'"),
        (lambda: LAYOUT((4, 4), [Split(0), Split], mesh=GRID), "Split"),
        (lambda: LAYOUT((4, 4), 5, mesh=GRID), "5"),
        (lambda: LAYOUT((4, -4), [Split(0), Split(0)], mesh=GRID), "-4"),
        (lambda: LAYOUT(4.5, [Split(0), Split(0)], mesh=GRID), "4.5"),
        (lambda: LAYOUT((4, 4), [Split(0), Split(0)], mesh=6), "6"),
        (lambda: LAYOUT((4, 4), [Partial("sum"), Partial("max")], mesh=GRID), "max and sum"),
        (lambda: PARTIAL("prod"), "'prod'"),
        (lambda: PARTIAL(np.array(["sum", "min"])), "array(['sum', 'min']"),
        (lambda: SPLIT(0.5), "0.5"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: [0, 4]}), "[0, 4]"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: [0, 5, 4]}), "[0, 5,"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: [1, 2, 4]}), "[1, 2,"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: [0, 2, 3]}), "[0, 2,"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: [0, 2., 4]}), "2.0"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={0: "abc"}), "'abc'"),
        (lambda: LAYOUT((4,), [Split(0), Broadcast()], mesh=GRID, cuts={1: [0, 4]}), "1"),
        (lambda: LAYOUT((4, 4), [Split(0), Broadcast()], mesh=GRID, cuts={1: [0, 2, 4]}), "leave"),
        (lambda: LAYOUT((4,), [Split(0)] * 2, mesh=GRID, cuts=[0, 4]), "[0, 4]"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        make()
