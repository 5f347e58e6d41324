"""Replicated state: what it is described by, and how it is put together again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from closeranks.collectives.contents import from_bytes, to_bytes
from closeranks.collectives.nest import rebuilt
from closeranks.collectives.state import leaves, table, unhealthy
from closeranks.collectives.synchronize import Voice, majority, overwritten, sources
from closeranks.comms.topology import Topology
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


@given(STATES, STATES)
def test_one_state_becomes_the_other_bit_for_bit(
    mine: dict[str, Any], right: dict[str, Any]
) -> None:
    wanted, have = table(right), table(mine)
    unlike, held, sent = have.unlike(wanted), dict(leaves(mine)), dict(leaves(right))
    found = {
        path: from_bytes(entry, to_bytes(sent[path]).copy(), held.get(path))
        if path in unlike else held[path]
        for path, entry in wanted.entries.items()
    }  # fmt: skip
    new = rebuilt(mine, wanted.shape, iter(found.values()))
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
    mine = {"a": one, "b": one, "c": one, "d": two, "e": two, "f": one}
    right = table({"a": two, "b": one, "c": two, "d": three, "e": three, "f": three, "g": one})
    unlike = table(mine).unlike(right)
    assert unlike == ("a", "c", "d", "e", "f", "g")
    old = overwritten(dict(leaves(mine)), right.entries, unlike)
    assert [path for path, leaf in old.items() if leaf is not None] == ["d", "e"]
    assert [old["d"] is two, old["e"] is two] == [True, True]
    right = table({"a": three, "b": two, "c": three, "d": two})
    old = overwritten({"a": one, "b": one, "c": one}, right.entries, "abcd")
    assert [old[path] is one for path in "abcd"] == [True, False, True, False]


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
                        ({"a/b": 1, "a": {"b": 2}}, "the path 'a/b'"),
                        ({"a": {"": [1]}, "a/": {"0": 1}}, "the path 'a//0'")):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            table(wrong)


def test_numbers_that_are_not_finite_are_named() -> None:
    state = {"a": np.array([1.0, np.nan]), "b": [np.inf, 1], "c": np.float32(2), "d": np.arange(2)}
    assert unhealthy(state) == (("a", "NaN"), ("b/0", "Inf"))


def voice(letter: str, born: int = 0, counts: bool = True) -> Voice:
    return Voice(letter.encode(), born, counts, True)


def test_who_is_right() -> None:
    assert majority([voice("a"), voice("b"), voice("b")]) == (1, 2)
    assert majority([voice("a", 3), voice("b", 1)]) == (1,)
    assert majority([voice("a"), voice("b")]) == (0,)
    new = [voice("x", 2, counts=False)] * 3
    assert majority([voice("a"), *new]) == (0,)
    assert majority(new) == (0, 1, 2)
    assert majority([voice("a", 1, counts=False), *new]) == (0,)
    assert majority([voice("a"), voice("a", 2, counts=False), voice("b"), voice("b")]) == (2, 3)


def test_the_nearest_gives_and_nobody_gives_all() -> None:
    topology = Topology.regular(node=2, rank=4)
    assert sources((0, 1, 4, 5), topology) == {2: 0, 3: 1, 6: 4, 7: 5}
    assert sources((0, 1), topology) == {2: 0, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
    assert sources(tuple(range(8)), topology) == {}
