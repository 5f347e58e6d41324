"""A state goes to JSON and bytes and comes back as it was."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.shards import PerRank, Shard
from closeranks.checkpoint.state.state_tree import read_dtype
from closeranks.errors import CheckpointError, UsageError

LEAVES = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(allow_nan=False),
    some.complex_numbers(allow_nan=False), some.text(max_size=400), some.binary(max_size=400),
)  # fmt: skip
NESTS = some.recursive(
    LEAVES,
    lambda inner: some.one_of(
        some.lists(inner, max_size=4),
        some.lists(inner, max_size=4).map(tuple),
        some.dictionaries(some.one_of(some.text(max_size=5), some.integers()), inner, max_size=4),
    ),
    max_leaves=20,
)


def there_and_back(state: Any) -> Any:
    shape, leaves = state_tree.flatten(state)
    shape = json.loads(json.dumps(shape))
    made = []
    for leaf in leaves:
        described = json.loads(json.dumps(leaf.described))
        data = leaf.array
        if data is not None:
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            assert state_tree.nbytes(described) == data.size
        made.append(state_tree.value(described, data))
    assert len(list(state_tree.paths(shape))) == len(leaves)
    return state_tree.unflatten(shape, made)


@given(NESTS)
def test_any_nest(state: Any) -> None:
    found = there_and_back(state)
    assert repr(found) == repr(state)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=">i4").reshape(2, 3), np.zeros((0, 5)), np.array(3.5), np.array([], "S0"),
    np.ones(3, ml_dtypes.bfloat16), np.array(["a", "bcd"]), np.arange(20.0)[::-3],
    np.array([(1, [2.0, 3.0])], [("a", "<i4"), ("b", "<f8", (2,))]), np.float32(2.5),
    np.array([np.datetime64("2026-01-01")]), np.array([float("nan")]), np.zeros(2, "V8"),
], ids=str)  # fmt: skip
def test_arrays(array: Any) -> None:
    found = there_and_back({"x": array})["x"]
    assert type(found) is type(array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another one"


class Data(bytes):
    def __bytes__(self) -> bytes:
        return b"others"


@pytest.mark.parametrize("count", [0, 1, 256, 257, 9999])
def test_texts_of_derived_classes_come_back_plain(count: int) -> None:
    found = there_and_back({"text": Text("x" * count), "data": Data(b"x" * count)})
    assert found == {"text": "x" * count, "data": b"x" * count}
    assert [type(value) for value in found.values()] == [str, bytes]


NAMED = sorted({np.dtype(kind).name for kind in vars(ml_dtypes).values()
                if isinstance(kind, type) and issubclass(kind, np.generic)})  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_every_type_of_ml_dtypes(kind: str) -> None:
    array = np.ones(3, np.dtype(kind))
    found = there_and_back({"x": array})["x"]
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_shards_and_values_of_ranks_are_marked() -> None:
    state = {"s": Shard(np.ones((2, 3)), (4, 3), (2, 0)), "r": PerRank([1, {"x": 2}]), "a": 1}
    _, leaves = state_tree.flatten(state)
    assert [(leaf.path, leaf.own) for leaf in leaves] == [
        ("s", True), ("r/0", True), ("r/1/x", True), ("a", False),
    ]  # fmt: skip
    assert leaves[0].described["offset"] == [2, 0]


@pytest.mark.parametrize(("state", "words"), [
    ({"a": object()}, "a is a object"), ({"a": {1.5: 2}}, "the key 1.5 of a"),
    ([np.array([None])], "0 is an array of objects"), ({"a": {3}}, "a is a set"),
    ({"m": np.ma.array([1])}, "m is an array of values and masks"),
    ([np.zeros(2, [("x", ml_dtypes.bfloat16)])], "0 has elements of type"),
    (lambda: 0, "the state is a function"), ({True: 1}, "the key True"),
])  # fmt: skip
def test_what_cannot_be_kept_is_named(state: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        state_tree.flatten(state)


@pytest.mark.parametrize("described", [
    "O", "nonsense", ["x"], 3, None, [["a", "O"]], {"a": 1}, "<f99",
])  # fmt: skip
def test_types_of_strangers_are_refused(described: Any) -> None:
    with pytest.raises(CheckpointError):
        read_dtype(described)


def test_kinds_of_strangers_are_refused() -> None:
    with pytest.raises(CheckpointError, match="of kind 'pickle'"):
        state_tree.value({"kind": "pickle", "value": "x"}, None)
    with pytest.raises(CheckpointError, match="of kind 'Text'"):
        state_tree.value({"kind": "Text", "shape": [1]}, np.zeros(1, np.uint8))


@pytest.mark.parametrize(("shape", "whole", "offset"), [
    ((2, 2), (3, 2), (2, 0)), ((2,), (2, 2), (0, 0)), ((1,), (4,), (-1,)),
])  # fmt: skip
def test_a_part_outside_of_the_whole_is_refused(
    shape: tuple[int, ...], whole: tuple[int, ...], offset: tuple[int, ...]
) -> None:
    with pytest.raises(UsageError, match="a part of shape"):
        Shard(np.ones(shape), whole, offset)


class Point(NamedTuple):
    x: Any
    y: Any


class Nested:
    Pair = namedtuple("Pair", "one two")


Nested.Pair.__qualname__ = "Nested.Pair"
RECORDS = np.rec.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")])
KEPT: list[Any] = [
    OrderedDict([("b", 1), ("a", np.arange(3))]), Counter("abca"), Counter({1: -2.5}),
    defaultdict(int, a=1), defaultdict(list, a=[1]), defaultdict(None, a=2), Point(1, [2.5, None]),
    Nested.Pair({"a": Point(1, 2)}, ()), Point(OrderedDict(), defaultdict(dict, a={})),
    np.arange(4).reshape(2, 2).view(np.matrix), np.arange(6.0).reshape(2, 3).view(np.matrix).T,
    RECORDS, RECORDS[0], RECORDS.view(np.ndarray),
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=range(len(KEPT)))
def test_kinds_come_back_as_they_were(value: Any) -> None:
    found = there_and_back({"x": [value]})["x"][0]

    def compare(one: Any, other: Any) -> None:
        assert type(one) is type(other)
        assert getattr(one, "default_factory", 0) == getattr(other, "default_factory", 0)
        if isinstance(one, dict):
            assert list(one) == list(other)
            compare(list(one.values()), list(other.values()))
        elif isinstance(one, list | tuple):
            for left, right in zip(one, other, strict=True):
                compare(left, right)
        elif isinstance(one, np.ndarray | np.generic):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.dtype.type is other.dtype.type
            assert one.tobytes() == other.tobytes()
        else:
            assert one == other

    compare(found, value)


class Roots(dict[str, Any]):
    pass


class Rows(list[Any]):
    pass


class Far(Point):
    pass


class Masses(np.ndarray[Any, Any]):
    pass


def lost(value: Any) -> Any:
    """Make a named tuple whose class nobody finds."""
    return namedtuple("Lost", "a")(value)


REFUSED: list[tuple[Any, str]] = [
    (Roots(a=1), "a Roots, which would come back as a dict"),
    (Rows([1]), "a Rows, which would come back as a list"),
    (Far(1, 2), "a Far, which would come back as a tuple"),
    (time.gmtime(0), "a struct_time, which would come back as a tuple"),
    (defaultdict(lambda: 1, a=1), "a defaultdict of <function"),
    (lost("a"), "a Lost, which would come back as a tuple"),
    (np.arange(3).view(Masses), "a Masses, which would come back as an ndarray"),
    (np.char.array(["a"]), "a chararray, which would come back as an ndarray"),
    (np.ma.masked_array([1, 2]), "an array of values and masks"), ({1, 2}, "a set"),
    (frozenset(), "a frozenset"), (Shard(np.arange(3).view(Masses), (3,), (0,)), "a Masses"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_would_change_its_kind_is_refused_with_its_path(value: Any, words: str) -> None:
    with pytest.raises(UsageError) as met:
        state_tree.flatten({"model": [0, value]})
    assert f"model/1 is {words}" in str(met.value)
    assert met.value.remedy


def test_a_named_tuple_of_what_is_not_imported_is_made_of_nothing_else() -> None:
    shape, _ = state_tree.flatten({"p": Point(1, 2)})
    for old, new in (
        ("Point x,y", "Point x,z"),
        (":Point", ":Rows"),
        ("test_state_tree", "test_none"),
    ):
        other = json.loads(json.dumps(shape).replace(old, new))
        assert other != shape
        with pytest.raises(CheckpointError, match="import its module first, or pass into"):
            state_tree.check_kinds(other)
    with pytest.raises(CheckpointError, match="use a newer closeranks"):
        state_tree.check_kinds({"deque": [0]})


def test_maps_of_files_come_back_as_plain_arrays(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.int32, "w+", shape=(3, 4))
    mapped[:] = np.arange(12).reshape(3, 4)
    found = there_and_back([mapped])[0]
    assert type(found) is np.ndarray
    assert np.array_equal(found, mapped)
