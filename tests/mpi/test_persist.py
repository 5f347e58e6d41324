"""Checkpoints that go to disk on real ranks, and come back from there."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard
from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.checkpoint.disk import hdf5_writer, saved_files
from closeranks.checkpoint.disk.saved_files import Files, SavedFileIndex
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.restore.recovery_search import RankNodes, Unreadable
from closeranks.checkpoint.restore.redistribution import Delivery
from closeranks.checkpoint.saving import membership_term, save
from closeranks.errors import CheckpointError, NotFound, PeerLost, TooManyErasures, UsageError
from tests.checkpoint.filed import about_of, extents, put
from tests.mpi.test_checkpoints import assert_same, small, state_of

__all__ = ["small"]


@pytest.fixture
def place(world: cr.Communicator | None) -> Iterator[Path]:
    """A folder that all ranks see."""
    if world is None:
        yield Path()
        return
    made = tempfile.mkdtemp(prefix="closeranks-disk-") if not world.rank else ""
    folder = Path(world.bcast(made))
    yield folder
    world.Barrier()
    if not world.rank:
        shutil.rmtree(folder)


def forget(world: cr.Communicator, name: str) -> None:
    """Lose all that is in memory."""
    world.Barrier()
    if not world.rank:
        for path, _ in slot_file.found(name):
            path.unlink()
    world.Barrier()


def files(place: Path, name: str, step: int) -> list[Path]:
    """Give the files of a step."""
    return sorted((place / name).glob(f"*-step-{step}/node-*.h5"))


def damage(world: cr.Communicator, place: Path, name: str, step: int) -> None:
    """Change a byte of a weight on disk."""
    world.Barrier()
    if not world.rank:
        for path in files(place, name, step):
            data = path.read_bytes()
            mark = np.arange(5000.0)[3000:3010] + step
            at = data.index(mark.tobytes())
            path.write_bytes(data[:at] + b"\x55" + data[at + 1 :])
    world.Barrier()


@pytest.mark.parametrize("lazy", [False, True])
def test_a_state_comes_back_from_disk(
    world: cr.Communicator, name: str, place: Path, lazy: bool
) -> None:
    with Checkpointer(world, name=name, persist=place) as keeper:
        for step in (1, 2, 3):
            pending = keeper.save(step, state_of(world.rank, world.size, step), lazy=lazy)
        pending.persisted.wait(30)
        assert keeper.steps() == (2, 3)
        assert keeper.verify() == {2: "whole; whole on disk", 3: "whole; whole on disk"}
    assert not list(slot_file.found(name))
    assert not files(place, name, 1)
    with Checkpointer(world, name=name, persist=place) as keeper:
        assert keeper.steps() == (2, 3)
        for asked, step in ((None, 3), (2, 2)):
            found = keeper.restore(step=asked)
            assert found is not None
            assert found[0] == step
            assert_same(found[1], state_of(world.rank, world.size, found[0]))
        assert keeper.skipped == ()
        with pytest.raises(NotFound, match="no step 9"):
            keeper.restore(step=9)
    world.Barrier()
    if not world.rank:
        (listed,) = saved_files.find_saves(place).values()
        assert [(one.step, one.objection(), one.world) for one in listed] == [
            (3, None, world.size), (2, None, world.size),
        ]  # fmt: skip


def test_what_is_not_due_is_said_at_once(world: cr.Communicator, name: str, place: Path) -> None:
    with Checkpointer(world, name=name, persist=place, persist_every=2) as keeper:
        for step in (1, 2, 3, 4, 5):
            pending = keeper.save(step, state_of(world.rank, world.size, step))
            if step % 2:
                with pytest.raises(CheckpointError, match=f"step {step} is not .*persist_every=2"):
                    pending.persisted.wait(0)
            else:
                pending.persisted.wait(30)
        assert keeper.steps() == (2, 4, 5)
    with Checkpointer(world, name=name) as plain:
        pending = plain.save(1, {"a": 1})
        with pytest.raises(CheckpointError, match="no persist= was given"):
            pending.persisted.wait(0)
        pending.committed.wait(30)
    for where, every in ((None, 2), (place, 0)):
        with pytest.raises(UsageError, match="persist_every"):
            Checkpointer(world, name=name, persist=where, persist_every=every)


def test_damage_on_disk_takes_the_older_step(
    world: cr.Communicator, name: str, place: Path
) -> None:
    with Checkpointer(world, name=name, persist=place) as keeper:
        for step in (1, 2):
            keeper.save(step, state_of(world.rank, world.size, step)).persisted.wait(30)
        damage(world, place, name, 2)
        assert "whole; on disk: " in keeper.verify()[2]
        assert "weights is damaged" in keeper.verify()[2]
        found = keeper.restore()  # which memory still has
        assert found is not None
        assert found[0] == 2
    with Checkpointer(world, name=name, persist=place) as keeper:
        found = keeper.restore()
        assert found is not None
        assert found[0] == 1
        assert_same(found[1], state_of(world.rank, world.size, 1))
        (why,) = keeper.skipped
        assert why.startswith("step 2: on disk: rank ")
        assert "weights is damaged" in why
        with pytest.raises(TooManyErasures, match="weights is damaged"):
            keeper.restore(step=2)
        damage(world, place, name, 1)
        with pytest.raises(TooManyErasures, match=r"step 2.*step 1"):
            keeper.restore()
        world.Barrier()
        if not world.rank:
            for path in files(place, name, 2):
                path.write_bytes(path.read_bytes()[:-1])
        world.Barrier()
        with pytest.raises(TooManyErasures, match=r"step 2: on disk: .*truncated"):
            keeper.restore()
        assert keeper.steps() == ()


def test_older_files_never_shadow_newer_saves(
    world: cr.Communicator, name: str, place: Path
) -> None:
    with Checkpointer(world, name=name, persist=place, keep=3) as keeper:
        for step in (1, 2, 3):
            keeper.save(step, {"a": step}).persisted.wait(30)
    with Checkpointer(world, name=name, persist=place, keep=3) as keeper:
        found = keeper.restore(step=1)
        assert found == (1, {"a": 1})
        keeper.save(2, {"a": 20}).persisted.wait(30)
        assert keeper.restore() == (2, {"a": 20})
    with Checkpointer(world, name=name, persist=place, keep=3) as keeper:
        assert keeper.restore() == (2, {"a": 20})
        assert keeper.restore(step=2) == (2, {"a": 20})
        keeper.save(4, {"a": 4}).persisted.wait(30)
        forget(world, name)
        assert keeper.restore() == (4, {"a": 4})
        assert keeper.restore(step=3) == (3, {"a": 3})
        keeper.save(5, {"a": 5}).persisted.wait(30)


def test_another_number_of_ranks_from_disk(world: cr.Communicator, name: str, place: Path) -> None:
    state = state_of(world.rank, world.size, 8)
    with Checkpointer(world, name=name, persist=place) as keeper:
        keeper.save(8, state).persisted.wait(30)
    old, fewer = world.size, max(1, world.size - 1)
    part = world.Split(0 if world.rank < fewer else 1, world.rank)
    if world.rank < fewer:
        keeper = Checkpointer(part, name=name, persist=place)
        if fewer != old:
            with pytest.raises(CheckpointError, match="own is of each of"):
                keeper.restore()
        rows = 12 // old * old
        bounds = [rows * at // fewer for at in range(fewer + 1)]
        low, high = bounds[part.rank], bounds[part.rank + 1]
        first = PerRank(lambda values, _: values[0])
        into = {
            **state, "own": PerRank(lambda values, rank: ([len(one) for one in values], rank)),
            "part": Shard(np.zeros((high - low, 5)), (rows, 7), (low, 1)),
            "rng": {"text": PerRank(lambda values, _: values), "data": b"", 7: first},
            "weights": np.zeros(5000), "list": [0, 0, 0, (0, first)], "across": None,
        }  # fmt: skip
        found = keeper.restore(into=into)
        assert found is not None
        got = found[1]
        whole = np.arange(rows * 7.0).reshape(rows, 7) + 8
        np.testing.assert_array_equal(got["part"].array, whole[low:high, 1:6])
        assert got["own"] == ([1000 + 3701 * rank for rank in range(old)], part.rank)
        assert got["rng"]["text"] == [f"rank {rank}" for rank in range(old)]
        assert got["weights"] is into["weights"]
        np.testing.assert_array_equal(got["weights"], np.arange(5000.0) + 8)
        np.testing.assert_array_equal(got["across"], (np.arange(600).reshape(20, 30) + 8).T)
        wrong = {**into, "weights": np.zeros(5001 if part.rank == fewer - 1 else 5000)}
        with pytest.raises(CheckpointError, match=r"weights is float64 of shape \(5001,\) in into"):
            keeper.restore(into=wrong)
        keeper.close()
    part.close()


def test_a_full_disk_harms_nothing_in_memory(world: cr.Communicator, small: str, name: str) -> None:
    large, little = np.zeros(8 << 20, np.uint8), np.full(1000, world.rank)
    keeper = Checkpointer(world, name=name, persist=small)
    keeper.save(1, {"own": PerRank(little)}).persisted.wait(30)
    pending = keeper.save(2, {"own": PerRank(large)})
    with pytest.raises(CheckpointError, match="No space left"):
        pending.persisted.wait(30)
    keeper.save(3, {"own": PerRank(little)}).persisted.wait(30)
    keeper.save(4, {"own": PerRank(large)}).committed.wait(30)  # nobody is told of 2 again
    keeper.save(5, {"own": PerRank(little)})
    with pytest.raises(CheckpointError, match=r"step 4 is not on disk: .*No space.*this save goes"):
        keeper.save(6, {"own": PerRank(little)})
    assert keeper.steps()[-2:] == (5, 6)
    keeper.save(7, {"own": PerRank(large)})
    with pytest.raises(CheckpointError, match="No space left"):
        keeper.close()
    world.Barrier()
    again = Checkpointer(world, name=name, persist=small)
    assert again.restore(step=6) is not None
    again.close()
    assert not list(Path(small).rglob(".*"))


def test_slots_wait_until_they_are_on_disk(
    world: cr.Communicator, name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write = threading.Event(), hdf5_writer.write

    def slowly(*arguments: Any, **options: Any) -> None:
        assert gate.wait(30)
        write(*arguments, **options)

    monkeypatch.setattr(hdf5_writer, "write", slowly)
    keeper = Checkpointer(world, name=name, persist=place, on_busy="skip")
    first = keeper.save(1, {"a": 1})
    first.committed.wait(30)
    second = keeper.save(2, {"a": 2})
    second.committed.wait(30)
    with pytest.raises(CheckpointError, match="step 3 skipped"):
        keeper.save(3, {"a": 3}).persisted.wait(30)
    assert not first.persisted.done()
    threading.Timer(0.3, gate.set).start()
    monkeypatch.setattr(keeper, "_options", replace(keeper._options, on_busy="wait"))
    last = keeper.save(4, {"a": 4})
    first.persisted.wait(0)
    last.persisted.wait(30)
    assert keeper.steps() == (2, 4)
    keeper.close()


def test_nodes_with_folders_of_their_own(world: cr.Communicator, place: Path) -> None:
    """Each rank plays a node: it sees the file that it has written, and no other."""
    size, rank, talk = world.size, world.rank, ControlChannel(world)
    states = [{"alike": np.arange(999.0), "own": np.full(50 * one, one),
               "part": Shard(np.full((2, 3), one), (2 * size, 3), (2 * one, 0))}
              for one in range(size)]  # fmt: skip
    every = extents(states, lambda path: path == "alike")
    for generation in (1, 2):
        own = {rank: every[rank]}
        about = about_of(own, size, node=rank, files=size, generation=generation, step=generation)
        path = put(place / str(rank), own, about)
    library = SavedFileIndex(talk, RankNodes(list(range(size)), rank), place / str(rank))
    newest, older = library.scan()
    assert newest.objection() is None
    assert library.damaged(newest) == []
    source = Files(newest, library)
    state = Delivery(source, talk, None).run()
    assert_same(state, states[rank])
    part = Shard(np.zeros((2 * size, 3), int), (2 * size, 3), (0, 0))
    again = Delivery(source, talk, {"alike": None, "own": None, "part": part}).run()
    np.testing.assert_array_equal(again["part"].array[:, 0], np.arange(2 * size) // 2)
    source.close()
    if rank == size - 1:
        data = path.read_bytes()
        at = data.index(np.full(3, rank).tobytes() if size > 1 else np.arange(3.0).tobytes())
        path.write_bytes(data[:at] + b"\x77" + data[at + 1 :])
    world.Barrier()
    assert len(library.damaged(newest)) == 1
    source = Files(newest, library)
    with pytest.raises(Unreadable, match="is damaged"):
        Delivery(source, talk, {"alike": None, "own": None, "part": part}).run()
    source.close()
    world.Barrier()
    if rank == 0 and size > 1:
        (place / "0" / older.files[0].name).unlink()
    world.Barrier()
    found = library.scan()[1].objection()
    if size > 1:
        assert found is not None
        assert f"{size - 1} complete files of {size}" in found.text
    talk.close()


def test_an_error_in_the_block_writes_the_newest_save(
    world: cr.Communicator, name: str, place: Path
) -> None:

    def fail() -> None:
        with Checkpointer(world, name=name, persist=place, persist_every=100) as keeper:
            for step in (1, 2):
                keeper.save(step, state_of(world.rank, world.size, step)).committed.wait(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(slot_file.found(name))
    forget(world, name)
    with Checkpointer(world, name=name, persist=place) as keeper:
        found = keeper.restore()
        assert found is not None
        assert found[0] == 2
        assert_same(found[1], state_of(world.rank, world.size, 2))


def test_who_was_not_told_that_a_save_is_committed_writes_it_all_the_same(
    world: cr.Communicator, name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = save.carry_out

    def untold(*arguments: Any) -> None:
        carry_out(*arguments)
        raise PeerLost("save", [0])

    def fail() -> None:
        with Checkpointer(world, name=name, persist=place, persist_every=9) as keeper:
            keeper.save(1, {"a": 1}).committed.wait(30)
            world.Barrier()
            monkeypatch.setattr(membership_term, "carry_out", untold)
            keeper.save(2, {"a": 2}).committed.wait(30)

    with pytest.raises(PeerLost):
        fail()
    monkeypatch.setattr(membership_term, "carry_out", carry_out)
    forget(world, name)
    with Checkpointer(world, name=name, persist=place) as keeper:
        assert keeper.steps() == (1, 2)
        assert keeper.restore() == (2, {"a": 2})


def test_a_folder_that_is_not_ours_is_an_error_on_all(
    world: cr.Communicator, name: str, place: Path
) -> None:
    world.Barrier()
    if not world.rank:
        (place / "elsewhere").mkdir()
        (place / name).symlink_to(place / "elsewhere")
    world.Barrier()
    keeper = Checkpointer(world, name=name, persist=place)
    with pytest.raises(CheckpointError, match="not a folder of this user"):
        keeper.restore()
