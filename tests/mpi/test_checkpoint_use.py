"""Checkpointers that are used wrongly, twice, or after their end: told, and nothing is lost."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard
from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.saving import job_claim
from closeranks.comms.shm.shared_folder import folder
from closeranks.errors import CheckpointError, Disagreement, UsageError


@pytest.mark.parametrize("ending", ["close", "keep", "unopened", "leave"])
def test_a_closed_one_refuses_all_and_leaves_nothing(
    world: cr.Communicator, name: str, ending: str
) -> None:
    keeper = Checkpointer(world, name=name)
    if ending != "unopened":
        keeper.save(1, {"a": np.arange(9)}).committed.wait(30)
    if ending == "leave":
        with pytest.raises(ZeroDivisionError), keeper:
            _ = 1 / 0
    else:
        keeper.close(keep=ending == "keep")
    world.Barrier()
    before = sorted(path.name for path in folder().iterdir() if name in path.name)
    assert bool(before) == (ending in ("keep", "leave"))
    calls: list[Callable[[], object]] = [
        lambda: keeper.save(2, {"a": np.arange(9)}), keeper.restore, keeper.steps, keeper.verify,
        keeper.availability, keeper.plan, keeper.__enter__,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UsageError, match="is closed; make another one"):
            call()
    keeper.close()
    world.Barrier()
    assert sorted(path.name for path in folder().iterdir() if name in path.name) == before
    with Checkpointer(world, name=name) as again:
        found = again.restore()
    assert (found is None) == (not before)


@pytest.mark.parametrize("look", ["verify", "restore"])
def test_a_step_that_was_found_damaged_is_not_listed(
    world: cr.Communicator, name: str, look: str
) -> None:
    keeper = Checkpointer(world, name=name, group=2)
    for step in (1, 2):
        keeper.save(step, {"own": PerRank(np.full(9000, step))}).committed.wait(30)
    assert keeper.steps() == (1, 2)
    world.Barrier()
    if world.rank == 0:
        for path, _ in slot_file.found(name):
            slot = slot_file.Slot.attach(path)
            for area in (slot.data, *slot.parity) if slot.header.step == 2 else ():
                area.memory[::50] ^= 1
            slot.close()
    world.Barrier()
    if look == "verify":
        assert keeper.verify()[2] != "whole"
    else:
        found = keeper.restore()
        assert found is not None
        assert found[0] == 1
    assert keeper.steps() == (1,)
    for step in (3, 4):
        keeper.save(step, {"own": PerRank(np.full(9000, step))}).committed.wait(30)
    assert keeper.steps() == (3, 4)
    keeper.close()


def test_ranks_that_ask_for_different_things_all_hear_of_it(
    world: cr.Communicator, name: str
) -> None:
    if world.size == 1:
        return
    last = world.rank == world.size - 1
    for options in ({"keep": 3 if last else 2}, {"name": f"{name}x" if last else name}):
        with pytest.raises(Disagreement, match=f"{next(iter(options))}="):
            Checkpointer(world, **{"name": name, **options}).steps()  # type: ignore[arg-type]
    with Checkpointer(world, name=name) as keeper, pytest.raises(Disagreement, match="step=3"):
        keeper.restore(step=3 if last else 4)


def test_what_checkpoints_say_goes_through_no_trial(world: cr.Communicator) -> None:
    talk = ControlChannel(world)
    assert type(talk._plain) is MPI.Intracomm, "a duplicate of ours would choose and time"
    talk.close()


def test_other_ranks_of_one_job_are_refused_a_name_that_is_open(
    world: cr.Communicator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.size < 2:
        return
    monkeypatch.setattr(job_claim, "PATIENCE_S", 0.3)
    part = world.Split(world.rank % 2, world.rank)
    keeper = Checkpointer(part, name=name)
    if world.rank % 2 == 0:
        keeper.save(1, {"a": 1}).committed.wait(30)
    world.Barrier()
    if world.rank % 2:
        with pytest.raises(CheckpointError, match=r"open elsewhere: host .*, pid "):
            keeper.restore()
        keeper.close()
    world.Barrier()
    if world.rank % 2 == 0:
        assert keeper.steps() == (1,)
        keeper.close()
    part.close()


OPTIONS: list[dict[str, Any]] = [
    {"keep": 1}, {"name": ""}, {"name": "a/b"}, {"name": "x" * 99}, {"parity": 0},
    {"on_busy": "drop"}, {"chunk_bytes": 100}, {"group": 1}, {"group": 999},
    {"interval": 0}, {"interval": "auto"}, {"mtbf_s": 60.0}, {"name": 5}, {"name": None},
    {"interval": "auto", "mtbf_s": "60"}, {"interval": "auto", "mtbf_s": True},
    {"interval": "soon"}, {"interval": True}, {"interval": [60]}, {"interval": 10**400},
    {"persist_every": 2}, {"persist_every": 1.5, "persist": "x"}, {"persist": 7}, {"persist": ""},
    {"persist_every": True, "persist": "x"}, {"persist_every": 0, "persist": "x"},
    {"directory": 7}, {"directory": "a\0b"}, {"directory": b"x"}, {"chunk_bytes": 1 << 80},
    *({option: value} for option in ("parity", "group", "keep", "chunk_bytes")
      for value in ("1", 1.5, float("nan"), True, -1, 1 << 70, [2], np.array([2, 3]))),
    {"on_busy": ["wait"]}, {"on_busy": None}, {"interval": float("nan")},
]  # fmt: skip


def test_options_that_make_no_sense(world: cr.Communicator) -> None:
    for options in OPTIONS:
        with pytest.raises(UsageError) as met:
            Checkpointer(world, **{"name": "test", **options})
        text = str(met.value)
        assert ";" in text, "no way out is told"
        assert any(option in text for option in options) or "group of" in text, (options, text)


def test_a_plain_communicator_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pass what closeranks\.init gives"):
        Checkpointer(MPI.COMM_SELF, name="test")  # type: ignore[arg-type]


def test_steps_that_are_none_are_refused_on_all(world: cr.Communicator, name: str) -> None:
    steps = (1.5, "1", True, None, 1 << 63, -(1 << 63) - 1, 1 << 70, 10**5000, float("nan"), [1])
    with Checkpointer(world, name=name) as keeper:
        for at, step in enumerate(steps):
            mine: Any = step if world.rank == 0 or at % 2 else 1  # on one rank, or on all
            with pytest.raises(UsageError, match="save: rank 0: UsageError: save: step="):
                keeper.save(mine, {"a": 1})
            if step is not None:
                with pytest.raises(UsageError, match="restore: step="):
                    keeper.restore(step=mine)
        keeper.save(-(1 << 63), {"a": 1}).committed.wait(30)
        assert keeper.restore(step=-(1 << 63)) == (-(1 << 63), {"a": 1})


def test_times_that_are_none_are_refused(world: cr.Communicator, name: str) -> None:
    with Checkpointer(world, name=name) as keeper:
        pending = keeper.save(1, {"a": 1})
        limits: list[Any] = [float("nan"), -1, "1", True, [1], 1j, 10**400, -float("inf")]
        for limit_s in limits:
            for mark in (pending.copied, pending.committed, pending.persisted):
                with pytest.raises(UsageError, match="timeout_s="):
                    mark.wait(limit_s)
        longs: list[Any] = [float("inf"), 1e300, np.float32(60), 10**100]
        for long_s in longs:
            pending.committed.wait(long_s)


def test_kinds_come_back_on_ranks(world: cr.Communicator, name: str) -> None:
    each = np.full((2, 2), world.rank).view(np.matrix)
    state: dict[str, Any] = {
        "count": Counter({"a": 2, "b": world.rank}), "order": OrderedDict(b=1, a=each),
        "made": defaultdict(list, x=[1]), "part": Shard(each, (2 * world.size, 2),
                                                        (2 * world.rank, 0)),
    }  # fmt: skip
    with Checkpointer(world, name=name) as keeper:
        with pytest.raises(UsageError, match="rank 0: UsageError: save: far is a Far"):
            keeper.save(1, {"far": Far() if world.rank == 0 else {}})
        keeper.save(1, state).committed.wait(30)
        into = OrderedDict(
            count={"a": 0, "b": 0}, order=OrderedDict(b=0, a=np.zeros_like(each)),
            made=defaultdict(list, x=[0]), part=None,
        )  # fmt: skip
        for given in (None, into):
            found = keeper.restore(into=given)
            assert found is not None
            got = found[1]
            kinds = [type(got), *(type(got[key]) for key in ("count", "order", "made"))]
            counter = Counter if given is None else dict
            assert kinds == [dict if given is None else OrderedDict, counter, OrderedDict,
                             defaultdict]  # fmt: skip
            assert dict(got["count"]) == {"a": 2, "b": world.rank}
            for array in (got["order"]["a"], got["part"].array):
                assert type(array) is np.matrix
                np.testing.assert_array_equal(array, each)
            assert got["made"]["new"] == []
        with pytest.raises(UsageError, match="into is a Far"):
            keeper.restore(into=Far() if world.rank == 0 else into)


class Far(dict[str, Any]):
    """A dict that may hold more."""
