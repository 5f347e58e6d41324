"""Pytrees of states: described alike wherever they are equal, and made again in place."""

from __future__ import annotations

import json
import pickle
from collections import Counter, OrderedDict, defaultdict
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

from closeranks.collectives.replicated.state_leaves import check, leaves, rebuilt, shape_of
from closeranks.errors import UsageError


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Word(str, Enum):
    """Keys that are more than strings."""

    STEP = "step"


class Needy(dict[str, Any]):
    """A dict that is not made of nothing."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted


def become(old: Any, new: Any) -> Any:
    """Make one pytree like another one."""
    check(old, shape_of(new))
    made = rebuilt(old, shape_of(new), iter([leaf for _, leaf in leaves(new)]))
    assert made == new
    assert shape_of(made) == shape_of(new)
    return made


def test_whose_strings_the_keys_are_makes_no_difference() -> None:
    state = {"step": 0, "lr": 1.0, "opt": {"step": 1, "lr": [2, {"step": 3}]}}
    for other in (
        json.loads(json.dumps(state)),
        {**state, "opt": pickle.loads(pickle.dumps(state["opt"]))},
        {"".join(["st", "ep"]): 0, "lr": 1.0, "opt": {Word.STEP: 1, "lr": [2, {"step": 3}]}},
        {np.str_("step"): 0, "lr": 1.0, "opt": state["opt"]},
    ):
        assert shape_of(other) == shape_of(state)
        assert [path for path, _ in leaves(other)] == [path for path, _ in leaves(state)]


def test_other_kinds_keys_and_lengths_are_another_nest() -> None:
    trees: list[Any] = [
        {"a": []}, {"a": ()}, {"a": {}}, {"b": []}, {"a": [1]}, {"a": [1, 1]}, {"a": [[1]]},
        {"a": 1, "b": 1}, {"b": 1, "a": 1}, {"a": {"b": 1}}, {"a": OrderedDict()},
        {"a": Pair(1, 1)},
        {"a": (1, 1)}, {"a": defaultdict(list)}, {"a": defaultdict(dict)}, {"a": defaultdict(None)},
        {"a": 1}, [], (), {}, OrderedDict(),
    ]  # fmt: skip
    assert len({shape_of(tree) for tree in trees}) == len(trees)


def test_what_is_inside_stays_the_same_object() -> None:
    inner: Any = defaultdict(lambda: [0], m=[1, 2])
    state = {"opt": inner, "ordered": OrderedDict(a=1), "pairs": [Pair(1, {"x": 1})]}
    kept = (inner, inner["m"], state["ordered"], state["pairs"], state["pairs"][0].right)
    wanted: Any = defaultdict(inner.default_factory, v=[5], m=[3, 4, 5])
    made = become(state, {"opt": wanted, "ordered": OrderedDict(b=2, a=3), "pairs": [
        Pair(7, {"x": 2}), Pair(1, 1)]})  # fmt: skip
    assert made is state
    now = (made["opt"], made["opt"]["m"], made["ordered"], made["pairs"], made["pairs"][0].right)
    assert all(one is other for one, other in zip(now, kept, strict=True))
    assert list(made["opt"]) == ["v", "m"]
    assert made["opt"]["new"] == [0]


def test_what_is_not_there_is_made_of_its_kind() -> None:
    for new in (OrderedDict(a=1), defaultdict(list, a=[1]), defaultdict(None, a=1), Counter(a=3),
                Pair(1, [2]), [Pair((), {})], (1, (2,))):  # fmt: skip
        for old in ({"x": {"a": 1}}, {}, {"x": 5}, {"x": [1]}):
            made = become(old, {"x": new})["x"]
            assert type(made) is type(new)
            assert getattr(made, "default_factory", 0) == getattr(new, "default_factory", 0)


def test_what_nobody_can_make_is_refused_unless_it_is_there() -> None:
    class Hidden(dict[str, Any]):
        pass

    for new, says in ((Hidden(a=1), "Hidden is not found"), (Needy(3), "Needy cannot be made"),
                      (defaultdict(lambda: 0, a=1), "<lambda> is not found")):  # fmt: skip
        for old in ({}, {"x": {"a": 1}}, {"x": 1}):
            with pytest.raises(UsageError, match=says):
                check(old, shape_of({"x": new}))
        check({"x": new}, shape_of({"x": new}))
    needy = Needy(3)
    assert become({"x": needy}, {"x": _needy(a=2)})["x"] is needy


def _needy(**items: Any) -> Needy:
    made = Needy(4)
    made.update(items)
    return made


def test_one_object_in_two_places_becomes_two_where_they_differ() -> None:
    zero: Any = [0]
    none = defaultdict(lambda: 0, a=1)
    made = become({"a": zero, "b": zero}, {"a": [1], "b": [2]})
    assert made["a"] is zero
    made = become({"a": zero, "b": zero}, {"a": zero, "b": [3]})
    assert made["a"] is zero
    made = become(
        {"a": none, "b": none}, {"a": none.copy(), "b": defaultdict(none.default_factory)}
    )
    assert made["b"].default_factory is none.default_factory
    made = become({"a": zero, "b": zero}, {"a": [4], "b": [4]})
    assert made["b"] is made["a"]
