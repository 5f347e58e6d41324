"""Replicated state on real ranks: compared, and made alike again."""

from __future__ import annotations

import warnings
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
