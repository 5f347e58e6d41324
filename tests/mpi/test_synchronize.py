"""Replicated state on real ranks: compared, and made alike again."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr


def state_of(seed: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {"step": seed, "model": {"w": chance.random((300, 40)), "b": chance.random(7)[::2]},
            "rest": [b"x" * seed, (1.5, "text")]}  # fmt: skip


def test_alike_states_are_alike(world: cr.Communicator) -> None:
    state = state_of(3)
    found = world.digest(state)
    assert (found.differing, found.unhealthy) == ((), ())
    assert str(found).endswith("alike")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert world.synchronize(state) is state


def test_who_differs_is_named_and_gets_the_others_state(world: cr.Communicator) -> None:
    if world.size < 3:
        pytest.skip("needs 3 ranks for a majority")
    state, last = state_of(4), world.size - 1
    if world.rank == last:
        state["model"]["w"][17, 3] += 1e-9
        state["rest"][1] = (1.5, "other")
        del state["step"]
    kept = state["model"]["w"]
    found = world.digest(state)
    assert found.differing == ((last, "step"), (last, "model/w"), (last, "rest/1/1"))
    assert found.value == world.allgather(found.value)[0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert world.synchronize(state) is state
    assert [str(one.message) for one in told] == [
        f"synchronize: rank {last} had another {path}" for path in ("step", "model/w", "rest/1/1")
    ]
    assert world.digest(state).differing == ()
    expected = state_of(4)
    assert state["model"]["w"] is kept
    assert (kept == expected["model"]["w"]).all()
    assert (state["step"], state["rest"]) == (4, expected["rest"])


def test_numbers_that_are_not_finite_are_reported(world: cr.Communicator) -> None:
    state = {"a": np.zeros(3, np.float32), "b": np.ones(2, np.float32)}
    if world.rank == 0:
        state["b"][1] = np.nan
    found = world.digest(state)
    assert found.unhealthy == ((0, "b", "NaN"),)
    assert "rank 0: b holds NaN" in str(found)


def test_a_tuple_is_given_back(world: cr.Communicator) -> None:
    mine = (np.full(5, 1.0 + (world.rank == world.size - 1 > 0)), world.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = world.synchronize(mine)
    assert state[0].tolist() == [1.0] * 5


def test_what_is_no_state_is_refused_before_anything_is_sent(world: cr.Communicator) -> None:
    with pytest.raises(cr.UsageError, match="the state is a set"):
        world.synchronize({1, 2})
    MPI.Intracomm(world).Barrier()


def test_padding_is_no_part_of_a_state(world: cr.Communicator) -> None:
    dtype = np.dtype([("a", "i1"), ("b", "f8"), ("c", [("d", "u2"), ("e", "g")], (2,))], align=True)
    dirty = np.frombuffer(bytearray([world.rank + 1]) * (4 * dtype.itemsize), dtype)
    dirty["a"], dirty["b"], dirty["c"]["d"], dirty["c"]["e"] = 1, 2.5, 3, 4.5
    state = {"w": dirty, "one": dirty[1], "none": np.zeros(3, "V0"), "step": np.longdouble(3)}
    assert world.digest(state).differing == ()
    last = world.size - 1
    if world.rank == last > 0:
        dirty["c"]["e"][2, 1] = 7
        state |= {"one": dirty[2], "none": np.zeros(2, "V0"), "step": np.longdouble(4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert world.synchronize(state) is state
    assert world.digest(state).differing == ()
    assert state["w"] is dirty
    assert (dirty["c"]["e"] == 4.5).all()
    assert state["one"]["c"]["e"].tolist() == [4.5, 4.5]
    assert state["none"].shape == (3,)


def test_keys_that_were_loaded_are_the_same_keys(world: cr.Communicator) -> None:
    state: dict[str, Any] = {"step": 1, "opt": {"step": 1, "lr": 0.1}}
    if world.rank == world.size - 1:
        state["opt"] = json.loads(json.dumps(state["opt"]))
    found = world.digest(state)
    assert found.differing == ()
    assert len(set(world.allgather(found.value))) == 1


def test_what_is_inside_keeps_its_kind(world: cr.Communicator) -> None:
    sums: Any = defaultdict(lambda: np.zeros(2), w=np.ones(2))
    last = world.size - 1
    if world.rank == last > 0:
        sums["w"][0], sums["v"] = 3, 4
    state = {"sums": sums, "order": OrderedDict(a=1) if world.rank != last else {"a": 1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world.synchronize(state)
    assert state["sums"] is sums
    assert list(sums) == ["w"]
    assert (sums["w"].tolist(), sums["new"].tolist()) == ([1, 1], [0, 0])
    assert isinstance(state["order"], OrderedDict) or world.size == 1


def test_a_state_that_is_wrong_on_one_rank_is_refused_on_all(world: cr.Communicator) -> None:
    last, wrong = world.size - 1, {"a/b": 1, "a": {"b": 2}}
    with pytest.raises(cr.UsageError, match="two leaves have the path 'a/b'") as told:
        world.synchronize(wrong if world.rank == last else {"a": {"b": 2}})
    assert (f"rank {last}" in str(told.value)) == (world.rank != last)
    with pytest.raises(cr.UsageError, match="the state is a set"):
        world.digest({1} if world.rank == last else {"a": 1})


def test_what_one_rank_cannot_make_is_refused_on_all(world: cr.Communicator) -> None:
    last = world.size - 1
    state = {"a": {"b": 1} if world.rank == last > 0 else defaultdict(lambda: 1, b=1)}
    if world.size == 1:
        assert world.synchronize(state) is state
        return
    assert world.digest(state).differing == ((last, ""),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(cr.UsageError, match="<lambda> is not found here"):
            world.synchronize(state)


def test_a_mask_is_compared_and_brought(world: cr.Communicator) -> None:
    last = world.size - 1
    values = np.ma.MaskedArray(np.arange(4.0), mask=[world.rank == last > 0, True, False, False])
    state = {"values": values}
    assert world.digest(state).differing == (((last, "values"),) if last else ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world.synchronize(state)
    assert state["values"] is values
    assert np.ma.getmaskarray(values).tolist() == [False, True, False, False]


def test_who_has_another_nest_or_one_array_is_named(world: cr.Communicator) -> None:
    last = world.size - 1
    states: list[Any] = [
        {"a": () if world.rank == last > 0 else []},
        np.arange(3) + (world.rank == last > 0),
    ]
    for state in states:
        found = world.digest(state)
        assert found.differing == (((last, ""),) if last else ())
        assert ("the state differs" in str(found)) == (last > 0)


def test_one_array_in_two_places_becomes_two_where_they_differ(world: cr.Communicator) -> None:
    zero, last = np.zeros(2), world.size - 1
    state = {"a": zero, "b": zero, "c": zero}
    if world.rank != last or last == 0:
        state = {"a": np.ones(2), "b": np.zeros(2), "c": np.ones(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        world.synchronize(state)
    assert [part.tolist() for part in state.values()] == [[1, 1], [0, 0], [1, 1]]
