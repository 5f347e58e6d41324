"""Checkpoints of device arrays on real ranks, with a device that forgives nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard
from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore import fetch
from closeranks.checkpoint.restore.fetch import Want
from closeranks.checkpoint.state import device_staging
from closeranks.comms.gpu.array_interface import device_array, install
from closeranks.errors import CheckpointError
from tests.fake_device import FakeArray, FakeDevice
from tests.mpi.test_checkpoints import drop
from tests.mpi.test_persist import forget, place

__all__ = ["place"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """A device of this rank; nothing fits the buffers."""
    runtime = FakeDevice()
    remove = install(runtime)
    monkeypatch.setattr(device_staging, "PIECE", 4096)
    yield runtime
    remove()


def values(rank: int, size: int, step: int) -> dict[str, Any]:
    """What a rank holds, on the host: alike, for itself, a part of a whole."""
    rows = 12 // size
    return {
        "weights": np.arange(5000, dtype=np.float32) + step,
        "own": np.full(1000 + 3701 * rank, rank + step, np.float16),
        "part": np.arange(rows * 700.0).reshape(rows, 700) + 700 * rank * rows + step,
        "gaps": (np.arange(6000).reshape(60, 100) + step)[::2, 3:90],
        "none": np.zeros((0, 4)),
        "host": np.arange(300) + step,
    }


def on_device(fake: FakeDevice, rank: int, size: int, step: int) -> dict[str, Any]:
    """The same on the device, but for what says that it lies on the host."""
    plain = values(rank, size, step)
    made: dict[str, Any] = {key: fake.array(value) for key, value in plain.items()}
    whole = fake.array(np.arange(6000).reshape(60, 100) + step)
    made |= {"gaps": whole[::2, 3:90], "host": plain["host"]}
    rows = 12 // size
    made["part"] = Shard(made["part"], (rows * size, 700), (rows * rank, 0))
    return made


def got(entry: Any) -> np.ndarray[Any, Any]:
    """See an entry of a state as an array on the host."""
    array = entry.array if isinstance(entry, Shard) else entry
    return array.get() if isinstance(array, FakeArray) else np.asarray(array)


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        one = got(found[key])
        assert (one.dtype, one.shape) == (value.dtype, value.shape), key
        np.testing.assert_array_equal(one, value, err_msg=key)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_state_on_a_device_comes_back(
    world: cr.Communicator, name: str, fake: FakeDevice, lazy: bool
) -> None:
    with fake.using(fake.stream(0)), Checkpointer(world, name=name) as keeper:
        for step in (1, 2):  # of which nothing has been computed when it is saved
            state = on_device(fake, world.rank, world.size, step)
            pending = keeper.save(step, state, lazy=lazy)
            pending.copied.wait(30)
            state["weights"].set(np.zeros(5000))  # may be written again
            state["part"].array.set(np.zeros((12 // world.size, 700)))
        pending.committed.wait(30)
        drop(world, name, (0,), "0")
        wanted = values(world.rank, world.size, 2)
        plain = keeper.restore()
        assert plain is not None
        assert isinstance(plain[1]["weights"], np.ndarray)
        assert_equal(plain[1], wanted)
        into = on_device(fake, world.rank, world.size, 9)
        seen = dict(into)
        found = keeper.restore(into=into)
        assert found is not None
        assert all(found[1][key] is seen[key] for key in ("weights", "own", "gaps", "part"))
        assert_equal(found[1], wanted)


def test_device_arrays_are_filled_from_disk(
    world: cr.Communicator, name: str, place: Path, fake: FakeDevice
) -> None:
    with Checkpointer(world, name=name, persist=place) as keeper:
        state = on_device(fake, world.rank, world.size, 1)
        keeper.save(1, state).persisted.wait(30)
        forget(world, name)
        found = keeper.restore(into=on_device(fake, world.rank, world.size, 9))
        assert found is not None
        assert_equal(found[1], values(world.rank, world.size, 1))
        assert isinstance(found[1]["weights"], FakeArray)


def test_what_is_equal_on_the_host_of_one_rank_and_the_device_of_another_is_kept_once(
    world: cr.Communicator, name: str, fake: FakeDevice
) -> None:
    plain: Any = np.arange(100_000.0)
    entry = fake.array(plain) if world.rank % 2 else plain
    with Checkpointer(world, name=name) as keeper:
        keeper.save(1, {"a": entry}).committed.wait(30)
        world.Barrier()
        kept = sum(path.stat().st_size for path, _ in slot_file.found(name))
        if world.size > 2:  # one copy of the data, and one share of parity
            assert kept < 1.9 * plain.nbytes
        found = keeper.restore(into={"a": fake.array(plain * 0) if world.rank % 2 else plain * 0})
        assert found is not None
        np.testing.assert_array_equal(got(found[1]["a"]), plain)


def test_another_number_of_ranks_fills_device_arrays(
    world: cr.Communicator, name: str, fake: FakeDevice
) -> None:
    everyone = Checkpointer(world, name=name)
    everyone.save(8, on_device(fake, world.rank, world.size, 8)).committed.wait(30)
    everyone.close(keep=True)
    old, fewer = world.size, max(1, world.size - 1)
    part = world.Split(0 if world.rank < fewer else 1, world.rank)
    if world.rank < fewer:
        rows = 12 // old * old
        bounds = [rows * at // fewer for at in range(fewer + 1)]
        low, high = bounds[part.rank], bounds[part.rank + 1]
        room = fake.array(np.full((high - low, 700), -1.0))
        cut = fake.array(np.full((high - low, 700), -1.0))
        keeper = Checkpointer(part, name=name)
        whole = np.arange(rows * 700.0).reshape(rows, 700) + 8
        for array, first in ((room, 0), (cut[:, 5:400], 205)):
            into = on_device(fake, part.rank, 12, 0) | {
                "own": PerRank(lambda old_values, rank: old_values[rank]),
                "part": Shard(array, (rows, 700), (low, first)),
            }
            found = keeper.restore(into=into)
            assert found is not None
            wanted = values(part.rank, old, 8) | {
                "part": whole[low:high, first:][:, : array.shape[1]]
            }
            assert_equal(found[1], wanted)
        assert (cut.get()[:, :5] == -1).all()
        assert (cut.get()[:, 400:] == -1).all()
        keeper.close(keep=True)
    part.close()


def test_an_array_that_changes_on_the_device_fails_the_save(
    world: cr.Communicator, name: str, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cr.Communicator, "checks", property(lambda _: True))
    x, last = fake.array(np.zeros(3000)), world.rank == world.size - 1
    keeper = Checkpointer(world, name=name)
    keeper.save(1, {"x": PerRank(x)}).committed.wait(30)
    write = slot_file.write

    def slowly(*arguments: Any) -> None:
        if last:
            x.set(np.ones(3000))  # behind what was saved
        write(*arguments)

    monkeypatch.setattr(slot_file, "write", slowly)
    with pytest.raises(CheckpointError, match="changed while it was copied: x"):
        keeper.save(2, {"x": PerRank(x)}).committed.wait(30)
    monkeypatch.undo()
    assert keeper.steps() == (1,)
    keeper.close()


def test_a_device_that_fails_on_one_rank_is_an_error_on_all(
    world: cr.Communicator, name: str, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = world.rank == world.size - 1
    keeper = Checkpointer(world, name=name)
    state: dict[str, Any] = {
        "x": fake.array(np.arange(3000.0)),
        "own": PerRank(fake.array(np.arange(99.0))),
    }
    keeper.save(1, state).committed.wait(30)

    def refuse(nbytes: int) -> Any:
        raise MemoryError("no pinned memory")

    if last:
        monkeypatch.setattr(fake, "pinned", refuse)
    for entry in ("x", "own"):  # while it is compared, while it is copied
        with pytest.raises(CheckpointError, match="no pinned memory"):
            keeper.save(2, {entry: state[entry]}).committed.wait(30)
    with pytest.raises(CheckpointError, match="no pinned memory"):
        keeper.restore(into={"x": state["x"], "own": state["own"].value})
    monkeypatch.undo()
    assert keeper.steps() == (1,)
    keeper.close()


def test_what_lies_on_other_nodes_comes_to_devices_in_rounds(
    world: cr.Communicator, fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_ROUND", 3000)
    me, size = world.rank, world.size
    held = {rank: np.random.default_rng(rank).integers(0, 256, 20_000, np.uint8)
            for rank in range(size)}  # fmt: skip
    slot: Any = SimpleNamespace(data=SimpleNamespace(memory=held[me]))
    wanted = np.concatenate([held[rank][rank : 7000 + 5 * me] for rank in range(size)])
    array = fake.array(np.zeros(len(wanted), np.uint8))
    there = device_array(array, "test")
    assert there is not None
    target, host, wants, at = (
        device_staging.DeviceBytes(there),
        np.zeros(500, np.uint8),
        list[Want](),
        0,
    )
    for rank in range(size):
        nbytes = 7000 + 5 * me - rank
        if me != 1 or size == 1:  # one rank wants nothing on its device
            wants.append(Want(Share(0, 0, rank), rank, target[at : at + nbytes]))
        at += nbytes
    wants.append(Want(Share(0, 0, (me + 1) % size), 100, host))
    talk = ControlChannel(world)
    fetch.fetch(wants, talk, lambda share: share.member,
                lambda share: slot if share.member == me else None)  # fmt: skip
    talk.close()
    np.testing.assert_array_equal(host, held[(me + 1) % size][100:600])
    if me != 1 or size == 1:
        np.testing.assert_array_equal(array.get(), wanted)
