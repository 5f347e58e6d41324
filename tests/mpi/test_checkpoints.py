"""Checkpoints on real ranks: saved, lost in part, and restored."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard
from closeranks.checkpoint.memory import slot_file
from closeranks.comms.shm.shared_folder import folder
from closeranks.errors import CheckpointError, NotFound, TooManyErasures, UsageError

ROOT = Path("/dev/shm")


def state_of(rank: int, size: int, step: int) -> dict[str, Any]:
    """What a rank holds: alike, in parts, and for itself."""
    rows = 12 // size
    return {
        "weights": np.arange(5000.0) + step,
        "own": np.full(1000 + 3701 * rank, rank + step, np.int16),
        "step": step,
        "rng": {"text": f"rank {rank}", "data": bytes([step]) * 1000, 7: np.float32(rank)},
        "part": Shard(np.arange(rows * 7.0).reshape(rows, 7) + 7 * rank * rows + step,
                      (rows * size, 7), (rows * rank, 0)),
        "list": [1, 2.5, None, (True, PerRank(3))],
        "empty": np.zeros((0, 3)),
        "across": (np.arange(600).reshape(20, 30) + step).T,
        "table": Shard(np.arange(15.0).reshape(3, 5) + 15 * rank + step, (3 * size - 2, 5),
                       (3 * rank, 0), padded=True),
    }  # fmt: skip


def assert_same(found: Any, wanted: Any) -> None:
    """Compare two states bit for bit."""
    if isinstance(wanted, PerRank):
        wanted = wanted.value
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, Shard):
        assert (found.global_shape, found.offset) == (wanted.global_shape, wanted.offset)
        assert found.padded == wanted.padded
        assert_same(found.array, wanted.array)
    elif isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


def drop(world: cr.Communicator, name: str, which: tuple[int, ...], place: str = "?") -> None:
    """Remove the slots of some members."""
    world.Barrier()
    if world.rank == 0:
        for member in which:
            for path in ROOT.glob(f"closeranks-*/checkpoint-{name}-*-{member}.{place}"):
                path.unlink()
    world.Barrier()


@pytest.mark.parametrize("lazy", [False, True])
def test_a_state_comes_back(world: cr.Communicator, name: str, lazy: bool) -> None:
    state = state_of(world.rank, world.size, 3)
    with Checkpointer(world, name=name) as keeper:
        assert keeper.restore() is None
        assert keeper.steps() == ()
        lock = folder() / f"lock-{keeper.key}"
        assert lock.exists()
        for step in (1, 2, 3):
            pending = keeper.save(step, state_of(world.rank, world.size, step), lazy=lazy)
        pending.committed.wait(30)
        assert str(keeper.availability()).splitlines()[1].split()[2:] == ["step", "3", "step", "2"]
        assert keeper.steps() == (2, 3)
        assert keeper.verify() == {2: "whole", 3: "whole"}
        found = keeper.restore()
        assert found is not None
        assert found[0] == 3
        assert_same(found[1], state)
        older = keeper.restore(step=2)
        assert older is not None
        assert_same(older[1], state_of(world.rank, world.size, 2))
        with pytest.raises(NotFound, match="no step 9"):
            keeper.restore(step=9)
    world.Barrier()
    assert not list(slot_file.found(name))
    assert not lock.exists()


@pytest.mark.parametrize("parity", [1, 2])
def test_lost_slots_come_back(world: cr.Communicator, name: str, parity: int) -> None:
    members = max(world.size, parity + 1)
    keeper = Checkpointer(world, name=name, parity=parity, group=members)
    keeper.save(5, state_of(world.rank, world.size, 5)).committed.wait(30)
    keeper.close(keep=True)
    lost = tuple(range(members - parity, members))
    drop(world, name, lost)
    again = Checkpointer(world, name=name, parity=parity, group=members)
    assert "can be restored" in again.verify()[5]
    found = again.restore()
    assert found is not None
    assert_same(found[1], state_of(world.rank, world.size, 5))
    assert again.verify() == {5: "whole"}
    again.save(6, state_of(world.rank, world.size, 6)).committed.wait(30)
    assert again.steps() == (6,)
    again.close()


def test_parity_that_nobody_needed_is_repaired_too(world: cr.Communicator, name: str) -> None:
    state, members = state_of(world.rank, world.size, 5), max(world.size, 2)
    keeper = Checkpointer(world, name=name, group=members)
    keeper.save(5, state).committed.wait(30)
    keeper.close(keep=True)
    world.Barrier()
    if world.rank == 0:
        for path in ROOT.glob(f"closeranks-*/checkpoint-{name}-*"):
            slot = slot_file.Slot.attach(path)
            slot.parity[0].memory[3] ^= 1
            slot.close()
    world.Barrier()
    again = Checkpointer(world, name=name, group=members)
    assert "damaged" in again.verify()[5]
    found = again.restore()
    assert found is not None
    assert_same(found[1], state)
    assert again.verify() == {5: "whole"}
    drop(world, name, (0,))  # which needs it
    found = again.restore()
    assert found is not None
    assert_same(found[1], state)
    again.close()


def test_one_loss_more_takes_the_older_step(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name, group=max(world.size, 3))
    for step in (1, 2):
        keeper.save(step, state_of(world.rank, world.size, step)).committed.wait(30)
    drop(world, name, (0, 1), "1")
    found = keeper.restore()
    assert found is not None
    assert found[0] == 1
    assert_same(found[1], state_of(world.rank, world.size, 1))
    assert keeper.skipped == ("step 2: group 0 has lost 2 members, its code tolerates 1",)
    with pytest.raises(TooManyErasures) as met:
        keeper.restore(step=2)
    assert (met.value.lost, met.value.tolerated) == ((0, 1), 1)
    drop(world, name, (0, 2), "0")
    with pytest.raises(TooManyErasures, match=r"step 2.*step 1"):
        keeper.restore()
    keeper.close()


def test_arrays_of_the_caller_are_filled(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name)
    state = {"a": np.arange(99.0), "b": np.full((4, 5), world.rank).T, "c": 4}
    keeper.save(1, state)
    into = {"a": np.zeros(99), "b": np.zeros((4, 5), int).T, "c": 0}
    found = keeper.restore(into=into)
    assert found is not None
    assert found[1]["a"] is into["a"]
    assert found[1]["b"] is into["b"]
    assert_same(found[1], state)
    wrong = {**into, "a": np.zeros(98)} if world.rank == world.size - 1 else into
    with pytest.raises(CheckpointError, match=r"a is float64 of shape \(98,\) in into"):
        keeper.restore(into=wrong)
    with pytest.raises(CheckpointError, match="into has other entries: a, x"):
        keeper.restore(into={"x": into["a"], "b": into["b"], "c": 0})
    keeper.close()


def test_what_is_wrong_on_one_rank_is_an_error_on_all(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name)
    last = world.rank == world.size - 1
    keeper.save(1, {"a": 1}).committed.wait(30)
    with pytest.raises(CheckpointError, match="b is a object"):
        keeper.save(2, {"b": object() if last else 1})
    if world.size > 1:
        with pytest.raises(CheckpointError, match="not all ranks save the same"):
            keeper.save(3 if last else 4, {"a": 1})
        with pytest.raises(CheckpointError, match="not all ranks save the same"):
            keeper.save(3, {"a" if last else "b": 1})
    assert keeper.steps() == (1,)
    keeper.save(5, {"a": 2}).committed.wait(30)
    assert keeper.steps() == (1, 5)
    keeper.close()


def test_a_failure_that_nobody_saw_is_told_by_the_next_save(
    world: cr.Communicator, name: str
) -> None:
    keeper = Checkpointer(world, name=name)
    keeper.save(1, {"a": 1}).committed.wait(30)
    keeper.save(2, {"a": {1, 2}}, lazy=True)
    with pytest.raises(CheckpointError, match="a is a set"):
        keeper.save(3, {"a": 3})
    keeper.save(4, {"a": 4}).committed.wait(30)
    assert keeper.steps() == (1, 4)
    keeper.save(5, {"a": {1, 2}}, lazy=True)
    assert keeper.steps() == (1, 4)
    with pytest.raises(CheckpointError, match="a is a set"):
        keeper.close()
    assert list(slot_file.found(name))
    world.Barrier()
    keeper.close()
    world.Barrier()
    assert not list(slot_file.found(name))


def test_saves_that_are_not_due_cost_nothing_and_do_nothing(
    world: cr.Communicator, name: str
) -> None:
    keeper = Checkpointer(world, name=name, interval=3600)
    assert keeper.save(1, {"a": 1}).is_due
    for step in range(2, 40):
        pending = keeper.save(step, {"a": step}, lazy=bool(step % 2))
        pending.copied.wait(0)
        pending.committed.wait(0)
        assert not pending.is_due
        assert repr(pending) == f"<Pending step {step}: not due>"
    assert keeper.steps() == (1,)
    assert keeper.save(40, {"a": 40}, now=True).is_due
    assert not keeper.save(41, {"a": 41}).is_due
    assert keeper.steps() == (1, 40)
    keeper.close()


@pytest.mark.parametrize("how", [{"interval": 0.05}, {"interval": "auto", "mtbf_s": 60.0}])
def test_ranks_of_unequal_pace_save_at_the_same_calls(
    world: cr.Communicator, name: str, how: dict[str, Any]
) -> None:
    keeper = Checkpointer(world, name=name, **how)
    rng, due = np.random.default_rng(world.rank), []
    for step in range(60):
        time.sleep(rng.random() * 0.004)
        pending = keeper.save(step, {"own": PerRank(np.zeros(1000 * world.rank))})
        due.append(pending.is_due)
        pending.committed.wait(30)
    assert len(set(world.allgather(tuple(due)))) == 1
    assert due[0]
    assert due.count(True) < 60
    keeper.close()


def test_what_has_failed_is_due_and_told(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name, interval=3600)
    last = world.rank == world.size - 1
    pending = keeper.save(1, {"a": {1} if last else 1}, lazy=True)
    while not pending.committed.done():
        time.sleep(0.001)
    with pytest.raises(CheckpointError, match="a is a set"):
        keeper.save(2, {"a": 1})
    assert keeper.save(3, {"a": 1}).is_due
    assert not keeper.save(4, {"a": 1}).is_due
    assert keeper.steps() == (3,)
    keeper.close()


def test_growing_and_shrinking_states(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name)
    for step, size in enumerate([10, 300_000, 5, 5, 70_000, 1, 0]):
        state = {"own": PerRank(np.full(size + world.rank, step, np.uint8)), "text": "x" * size}
        keeper.save(step, state).committed.wait(30)
        drop(world, name, (step % 2,), str(step % 2))
        found = keeper.restore()
        assert found is not None
        assert found[0] == step
        assert_same(found[1], {"own": state["own"], "text": state["text"]})
    keeper.close()


def test_another_number_of_ranks(world: cr.Communicator, name: str) -> None:
    everyone = Checkpointer(world, name=name)
    state = state_of(world.rank, world.size, 8)
    state["mean"] = PerRank(float(world.rank))
    everyone.save(8, state).committed.wait(30)
    everyone.close(keep=True)
    old, fewer = world.size, max(1, world.size - 1)
    part = world.Split(0 if world.rank < fewer else 1, world.rank)
    if world.rank < fewer:
        keeper = Checkpointer(part, name=name)
        if fewer != old:
            with pytest.raises(CheckpointError, match="own is of each of"):
                keeper.restore()
        rows = 12 // old * old
        bounds = [rows * at // fewer for at in range(fewer + 1)]
        low, high = bounds[part.rank], bounds[part.rank + 1]
        piece = Shard(np.zeros((high - low, 5)), (rows, 7), (low, 1))
        first = PerRank(lambda values, _: values[0])
        each = 1 + 3 * old // fewer
        table = Shard(
            np.full((each, 5), -1.0), (3 * old - 2, 5), (each * part.rank, 0), padded=True
        )
        into = {
            **state, "own": PerRank(lambda values, rank: (len(values), rank)), "part": piece,
            "rng": {"text": PerRank(lambda values, _: values), "data": b"", 7: first},
            "weights": np.zeros(5000), "list": [0, 0, 0, (0, first)], "across": None,
            "mean": PerRank(lambda values, _: sum(values) / len(values)), "table": table,
        }  # fmt: skip
        found = keeper.restore(into=into)
        assert found is not None
        got = found[1]
        whole = np.arange(rows * 7.0).reshape(rows, 7) + 8
        np.testing.assert_array_equal(got["part"].array, whole[low:high, 1:6])
        rows_of_all = np.full((each * fewer, 5), -1.0)
        rows_of_all[: 3 * old - 2] = np.arange(5.0 * (3 * old - 2)).reshape(-1, 5) + 8
        np.testing.assert_array_equal(got["table"].array, rows_of_all[each * part.rank :][:each])
        assert got["own"] == (old, part.rank)
        assert got["mean"] == (old - 1) / 2
        assert got["rng"]["text"] == [f"rank {rank}" for rank in range(old)]
        np.testing.assert_array_equal(got["weights"], np.arange(5000.0) + 8)
        np.testing.assert_array_equal(got["across"], (np.arange(600).reshape(20, 30) + 8).T)
        keeper.close(keep=True)
    part.close()


def test_slots_that_vanish_are_made_again(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name, group=max(world.size, 2))
    for step in (1, 2):
        keeper.save(step, {"own": PerRank(np.full(9000, step))}).committed.wait(30)
    drop(world, name, tuple(range(max(world.size, 2))))
    for step in (3, 4):
        keeper.save(step, {"own": PerRank(np.full(9000, step))}).committed.wait(30)
    assert keeper.steps() == (3, 4)
    keeper.close()


def test_a_step_that_was_restored_is_not_written_over(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name)
    for step in (1, 2):
        keeper.save(step, {"own": PerRank(np.full(9000, step))}).committed.wait(30)
    assert keeper.restore(step=1) is not None
    keeper.save(3, {"own": PerRank(np.full(9000, 3))}).committed.wait(30)
    assert keeper.steps() == (1, 3)
    with pytest.raises(UsageError, match="is open twice"):
        Checkpointer(world, name=name).steps()
    keeper.close()


def test_what_nobody_can_read_is_not_nothing(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name)
    keeper.save(np.int64(1), {"a": 1}).committed.wait(30)  # type: ignore[arg-type]
    keeper.close(keep=True)
    if world.rank == 0:
        for path, _ in slot_file.found(name):
            path.write_bytes(bytes(path.stat().st_size))
    world.Barrier()
    again = Checkpointer(world, name=name)
    with pytest.raises(CheckpointError, match="no header is whole"):
        again.restore()
    with pytest.raises(CheckpointError, match=r"step=1\.5"):
        again.save(1.5, {"a": 1})  # type: ignore[arg-type]
    again.close()


def test_a_place_that_is_not_there_is_an_error_on_all(world: cr.Communicator) -> None:
    keeper = Checkpointer(world, name="test", directory="/nowhere")
    with pytest.raises(CheckpointError, match="/nowhere"):
        keeper.restore()


@pytest.fixture
def small(world: cr.Communicator | None) -> Iterator[str]:
    """A file system in memory of 4 MiB."""
    if world is None:
        yield ""
        return
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    place = Path(
        world.bcast(tempfile.mkdtemp(prefix="closeranks-small-") if not world.rank else "")
    )
    mount = ["mount", "-t", "tmpfs", "-o", "size=4M", "closeranks", str(place)]
    done = subprocess.run(mount, capture_output=True).returncode if not world.rank else 0
    if world.bcast(done):
        pytest.skip("mount is not allowed here")
    yield str(place)
    world.Barrier()
    if not world.rank:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def test_a_full_file_system_leaves_the_save_before(
    world: cr.Communicator, small: str, name: str
) -> None:
    keeper = Checkpointer(world, name=name, directory=small, group=max(world.size, 2))
    keeper.save(1, {"own": PerRank(np.full(1000, world.rank))}).committed.wait(30)
    for step in (2, 3):
        with pytest.raises(CheckpointError, match=r"bytes wanted, \d+ free"):
            keeper.save(step, {"own": PerRank(np.zeros(8 << 20, np.uint8))})
    keeper.save(4, {"own": PerRank(np.full(2000, world.rank))}).committed.wait(30)
    assert keeper.steps() == (1, 4)
    found = keeper.restore(step=1)
    assert found is not None
    np.testing.assert_array_equal(found[1]["own"], np.full(1000, world.rank))
    keeper.close()
