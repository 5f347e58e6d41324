"""Replicated state: what it is described by, and how it is put together again."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from closeranks.collectives.replicated.leaf_bytes import from_bytes, to_bytes
from closeranks.collectives.replicated.leaf_transfer import Placing
from closeranks.collectives.replicated.state_leaves import leaves, rebuilt, table, unhealthy
from closeranks.collectives.replicated.synchronization import StateReport, majority, sources
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError

ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "i8", "?", "c8", "u1"]), hnp.array_shapes(min_dims=0, min_side=0)
)
LEAVES = (st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | st.none()
          | st.booleans() | ARRAYS)  # fmt: skip
NESTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
STATES = st.dictionaries(st.text(min_size=1, max_size=4), NESTS, max_size=4)


class Metres(np.ndarray):
    """An array that may have more than its numbers."""


def brought(mine: Any, right: Any) -> Any:
    """Make one state of the other as synchronize does."""
    wanted, unlike = table(right), table(mine).unlike(table(right))
    held, sent = dict(leaves(mine)), dict(leaves(right))
    placing = Placing(held, wanted.entries, set(unlike))
    found = {
        path: placing.put(path, to_bytes(sent[path]).copy()) if path in unlike else held[path]
        for path in wanted.entries
    }
    return rebuilt(mine, wanted.shape, iter(found.values()))


@given(STATES, STATES)
def test_one_state_becomes_the_other_bit_for_bit(
    mine: dict[str, Any], right: dict[str, Any]
) -> None:
    wanted = table(right)
    new = brought(mine, right)
    assert new is mine
    assert table(new) == wanted
    assert table(new).unlike(wanted) == ()


def test_arrays_stay_where_they_are() -> None:
    weights, given = np.zeros((2, 3)), np.arange(6.0).reshape(2, 3)
    mine, right = {"w": weights[:, ::-1], "n": [1]}, {"w": given, "n": [2]}
    entry = table(right).entries["w"]
    assert from_bytes(entry, to_bytes(right["w"]), mine["w"]) is mine["w"]
    assert weights[:, ::-1].tolist() == given.tolist()
    assert list(entry.shape) == [2, 3]


def test_one_array_in_several_places_is_kept_for_those_that_are_alike() -> None:
    one, two, three = np.ones(2), np.full(2, 2.0), np.full(2, 3.0)
    first, second = one.copy(), two.copy()
    mine = {"a": first, "b": first, "c": first, "d": second, "e": second, "f": first}
    right = {"a": two, "b": one, "c": two, "d": three, "e": three, "f": three, "g": one}
    new = brought(mine, right)
    assert table(new) == table(right)
    assert [path for path in new if new[path] is first] == ["b"]
    assert [path for path in new if new[path] is second] == ["d", "e"]
    right = {"a": three, "b": two, "c": three, "d": two}
    new = brought({"a": first, "b": first, "c": first}, right)
    assert table(new) == table(right)
    assert [path for path in new if new[path] is first] == ["a", "c"]


def test_views_of_one_array_are_kept_where_they_are_alike() -> None:
    flat, given = np.zeros(12), np.arange(12.0)
    for mine in (
        {"flat": flat, "parts": [flat[:5], flat[5:], flat[::-1]]},
        {"parts": [flat[:5], flat[5:10]], "flat": flat, "even": flat[::2]},
        {"column": flat.reshape(3, 4)[:, 1], "flat": flat, "words": flat.view("i4")},
        {"flat": flat, "read": np.broadcast_to(flat, (1, 12))},
    ):  # fmt: skip
        flat[...] = 0
        old = dict(leaves(mine))
        flat[...] = given
        right = copy.deepcopy(mine)
        for before in (np.zeros(12), given + np.arange(12) % 5):
            flat[...] = before
            assert table(brought(mine, right)) == table(right)
            assert all(new is old[path] for path, new in leaves(mine))
        assert flat.tolist() == given.tolist()


def test_views_of_one_array_become_apart_where_they_differ() -> None:
    one, two = np.ones(6), np.full(6, 2.0)
    for start, best in ((0, slice(None)), (0, slice(2, 4)), (1, slice(None, None, -1))):
        memory = np.zeros(6)
        mine = {"w": memory, "best": memory[best]}
        if start:
            memory[...] = two
        right = {"w": one, "best": two[best]}
        assert table(brought(mine, right)) == table(right)
        assert [mine["w"] is memory, mine["best"].base is memory] == [not start, bool(start)]
        assert mine["w"].flags.writeable
        assert mine["best"].flags.writeable


def test_views_that_lie_between_each_other_are_apart() -> None:
    memory, right = np.zeros((5, 4)), np.arange(20.0).reshape(5, 4)
    mine = [memory[:, place] for place in range(4)]
    old = list(mine)
    brought(mine, [right[:, place] for place in range(4)])
    assert all(map(operator.is_, mine, old))
    assert memory.tolist() == right.tolist()


def test_an_array_whose_elements_share_memory_gets_its_own_where_they_differ() -> None:
    window = np.lib.stride_tricks.sliding_window_view(np.zeros(4), 2, writeable=True)
    thrice = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))
    for old in (window, thrice, thrice[::-1]):
        for right in (np.arange(old.size, dtype=float).reshape(old.shape), np.ones(old.shape)):
            new = brought({"a": old}, {"a": right})["a"]
            assert (new == right).all()
            assert (new is old) == bool((right == 1).all())


def test_masks_of_one_array_become_apart_where_they_differ() -> None:
    for memory in (np.ma.MaskedArray(np.zeros(3), mask=[True, False, False]), np.ma.zeros(3)):
        mine: dict[str, Any] = {"a": memory, "b": memory[:], "c": memory}
        one, two = np.ma.ones(3), np.ma.MaskedArray(np.ones(3), mask=[False, True, False])
        right: dict[str, Any] = {"a": one, "b": two, "c": two}
        assert table(brought(mine, right)) == table(right)
        assert mine["a"] is memory
    memory = np.ma.MaskedArray(np.zeros(3), mask=[True, False, False])
    mine = {"a": memory, "mask": memory.mask}
    right = {"a": two, "mask": np.array([True, True, False])}
    assert table(brought(mine, right)) == table(right)
    assert mine["a"] is memory


CUTS = st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from([-2, -1, 1, 2]))


@given(st.lists(st.tuples(CUTS, st.integers(0, 2)), max_size=6), st.integers(0, 2))
def test_whatever_views_there_are_all_become_right(
    views: list[tuple[tuple[int, int, int], int]], first: int
) -> None:
    memory, right = np.full(6, first), [np.full(6, kind) for kind in range(3)]
    mine = [memory[slice(*cut)] for cut, _ in views]
    given = [right[kind][slice(*cut)] for cut, kind in views]
    assert table(brought(mine, given)) == table(given)


def test_other_bits_or_another_nest_are_another_state() -> None:
    zero = table({"x": np.zeros(2), "y": [1]})
    for other in (
        {"x": -np.zeros(2), "y": [1]}, {"x": np.zeros(2, "f4"), "y": [1]},
        {"x": np.zeros((2, 1)), "y": [1]}, {"x": np.zeros(2), "y": (1,)},
        {"x": np.zeros(2), "y": [True]}, {"x": np.zeros(2), "z": [1]},
    ):  # fmt: skip
        assert table(other).digest != zero.digest
    assert table({"x": np.zeros(4)[::2], "y": [1]}).digest == zero.digest


def test_what_is_no_state_is_refused() -> None:
    for wrong, says in (({"a": {1}}, "a is a set"), ({1: 2}, "key 1"), (lambda: 0, "function"),
                        ({"a": [np.array([None])]}, "a/0 is a ndarray"),
                        ({"a": np.zeros(1).view(Metres)}, "a is a Metres"),
                        ({"a/b": 1, "a": {"b": 2}}, "the path 'a/b'"),
                        ({"a": {"": [1]}, "a/": {"0": 1}}, "the path 'a//0'")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            table(wrong)


def test_numbers_that_are_not_finite_are_named() -> None:
    state = {"a": np.array([1.0, np.nan]), "b": [np.inf, 1], "c": np.float32(2), "d": np.arange(2)}
    assert unhealthy(state) == (("a", "NaN"), ("b/0", "Inf"))


def state_report(letter: str, born: int = 0, counts: bool = True) -> StateReport:
    return StateReport(letter.encode(), born, counts, True)


def test_who_is_right() -> None:
    assert majority([state_report("a"), state_report("b"), state_report("b")]) == (1, 2)
    assert majority([state_report("a", 3), state_report("b", 1)]) == (1,)
    assert majority([state_report("a"), state_report("b")]) == (0,)
    new = [state_report("x", 2, counts=False)] * 3
    assert majority([state_report("a"), *new]) == (0,)
    assert majority(new) == (0, 1, 2)
    assert majority([state_report("a", 1, counts=False), *new]) == (0,)
    assert majority(
        [
            state_report("a"),
            state_report("a", 2, counts=False),
            state_report("b"),
            state_report("b"),
        ]
    ) == (2, 3)


def test_the_nearest_gives_and_nobody_gives_all() -> None:
    topology = Topology.regular(node=2, rank=4)
    assert sources((0, 1, 4, 5), topology) == {2: 0, 3: 1, 6: 4, 7: 5}
    assert sources((0, 1), topology) == {2: 0, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
    assert sources(tuple(range(8)), topology) == {}
