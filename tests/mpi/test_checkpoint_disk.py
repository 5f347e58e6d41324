"""What stays on disk on real ranks, and what is removed there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.errors import CheckpointError
from tests.mpi.test_checkpoints import assert_same, state_of
from tests.mpi.test_persist import damage, files, forget, place

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["place"]


@pytest.mark.parametrize("how", ["restore", "verify"])
def test_what_is_known_to_be_damaged_takes_no_place_of_what_is_whole(
    world: cr.Communicator, name: str, place: Path, how: str
) -> None:
    with Checkpointer(world, name=name, persist=place, keep=2) as keeper:
        for step in (1, 2):
            keeper.save(step, state_of(world.rank, world.size, step)).persisted.wait(30)
    damage(world, place, name, 2)
    with Checkpointer(world, name=name, persist=place, keep=2) as keeper:
        keeper.verify() if how == "verify" else keeper.restore()
        for step, stay in ((3, (1, 2, 3)), (4, (3, 4))):
            keeper.save(step, state_of(world.rank, world.size, step)).persisted.wait(30)
            world.Barrier()
            assert [of for of in range(1, 5) if files(place, name, of)] == list(stay)
            world.Barrier()


@pytest.fixture
def disk(comm: MPI.Intracomm | None) -> Iterator[Path]:
    """A folder of this rank alone, as if it were a node with a disk of its own."""
    with tempfile.TemporaryDirectory(prefix="closeranks-disk-") as made:
        (Path(made) / "memory").mkdir()
        yield Path(made)


def test_nothing_stays_of_a_save_that_one_node_could_not_write(
    comm: MPI.Intracomm, disk: Path
) -> None:
    last = comm.rank == comm.size - 1
    nodes = cr.Topology.regular(node=comm.size, rank=1)
    with cr.init(comm, topology=nodes) as world:
        keeper = Checkpointer(world, name="test", directory=disk / "memory", persist=disk / "disk")
        state = {"own": PerRank(np.arange(5000.0) + world.rank)}
        keeper.save(1, state).persisted.wait(30)
        folder = disk / "disk" / "test"
        if last:  # as a file system that is read-only now
            folder.rename(disk / "away")
            folder.touch()
        for step in (2, 3, 4):
            with pytest.raises(CheckpointError, match=r"not a folder|File exists"):
                keeper.save(step, state).persisted.wait(30)
        if last:
            folder.unlink()
            (disk / "away").rename(folder)
        assert [path.name[-6:] for path in folder.iterdir()] == ["step-1"]
        keeper.save(5, state).persisted.wait(30)
        assert sorted(path.name[-6:] for path in folder.iterdir()) == ["step-1", "step-5"]
        assert len(list(folder.rglob("*.h5"))) == 2
        keeper.close()


def test_what_came_back_is_written_when_the_process_goes(
    world: cr.Communicator, name: str, place: Path
) -> None:
    make = partial(Checkpointer, world, name=name, persist=place, persist_every=100)

    def leave(step: int | None) -> None:
        with make() as keeper:
            found = keeper.restore()
            assert found is not None
            assert found[0] == 2
            if step is not None:
                keeper.save(step, state_of(world.rank, world.size, step)).committed.wait(30)
            world.Barrier()
            raise ZeroDivisionError

    keeper = make()
    for step in (1, 2):
        keeper.save(step, state_of(world.rank, world.size, step)).committed.wait(30)
    keeper.close(keep=True)
    for saved, written in ((None, [2]), (3, [2, 3])):
        with pytest.raises(ZeroDivisionError):
            leave(saved)
        world.Barrier()
        assert [step for step in range(1, 4) if files(place, name, step)] == written
        world.Barrier()
    forget(world, name)
    with make() as keeper:
        for step in (3, 2):
            found = keeper.restore(step=step)
            assert found is not None
            assert_same(found[1], state_of(world.rank, world.size, step))


def test_what_is_due_is_counted_on_where_the_last_start_was(
    world: cr.Communicator, name: str, place: Path
) -> None:
    for start in range(3):
        keeper = Checkpointer(world, name=name, persist=place, persist_every=4, keep=9)
        keeper.restore()
        for step in range(3 * start + 1, 3 * start + 4):
            if step == 4:  # the next one takes its turn
                with pytest.raises(CheckpointError, match="a is a set"):
                    keeper.save(4, {"a": {1, 2}})
            else:
                keeper.save(step, {"a": step}).committed.wait(30)
        keeper.close(keep=True)
    world.Barrier()
    assert [step for step in range(1, 10) if files(place, name, step)] == [5, 8]


def test_a_node_that_had_another_number_removes_what_it_wrote_then(
    comm: MPI.Intracomm, disk: Path
) -> None:
    nodes = cr.Topology.regular(node=comm.size, rank=1)
    for start in range(2):
        order = cast("MPI.Intracomm", comm.Split(0, -comm.rank if start else comm.rank))
        with cr.init(order, topology=nodes) as world:
            keeper = Checkpointer(world, name="test", directory=disk / "memory", persist=disk)
            for step in (2 * start, 2 * start + 1):
                state = {"own": PerRank(np.arange(500.0) + world.rank)}
                keeper.save(step, state).persisted.wait(30)
            keeper.close()
        order.Free()
    assert sorted(path.name[-6:] for path in (disk / "test").iterdir()) == ["step-2", "step-3"]
