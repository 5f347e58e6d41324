"""What stays on disk on real ranks, and what is removed there."""

from __future__ import annotations

from pathlib import Path

import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer
from tests.mpi.test_checkpoints import state_of
from tests.mpi.test_persist import damage, files, place

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
