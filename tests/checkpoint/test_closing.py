"""What is left of a job that has ended: nothing, also where ranks were lost before."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.memory.slot_set import clear_unless_open
from closeranks.comms.shm.shared_folder import folder
from closeranks.errors import CheckpointError
from tests.checkpoint.ground import NAME
from tests.checkpoint.hearing import Company
from tests.checkpoint.memory.test_slot_locks import holder
from tests.checkpoint.points import set_up
from tests.checkpoint.stage import Stage

NODES = (0, 0, 1)


@pytest.fixture
def keepers(shm: Path, monkeypatch: pytest.MonkeyPatch) -> list[Checkpointer]:
    """Three ranks of two nodes that have saved, and go on as two of another epoch."""
    set_up(monkeypatch)
    stage, later = Stage(Random(0), faults=True), Stage(Random(1), faults=True)
    made, comms = [], []

    def part(rank: int) -> None:
        comms.append(comm := Company(stage, rank, NODES, 0))
        place = shm / str(NODES[rank])
        place.mkdir(exist_ok=True)
        keeper = Checkpointer(comm, name=NAME, directory=place, persist=shm / "disk")  # type: ignore[arg-type]
        made.append(keeper)
        keeper.save(1, {"own": PerRank(np.full(5000, rank))}).committed.wait(10)

    assert stage.play([partial(part, rank) for rank in range(3)], [None] * 3) == [None] * 3
    left = [(comm, keeper) for comm, keeper in zip(comms, made, strict=True) if comm.rank]
    for comm, _ in left:
        comm.join(later, comm.rank - 1, NODES[1:], 1)
    return [keeper for _, keeper in left]


def remaining(root: Path) -> list[Path]:
    return [path for node in set(NODES) for path, _ in slot_file.found(NAME, root / str(node))]


@pytest.mark.parametrize("keep", [False, True])
def test_nothing_was_saved_since_a_recovery(
    keepers: list[Checkpointer], shm: Path, keep: bool
) -> None:
    assert remaining(shm)
    for keeper in keepers:
        keeper.close(keep=keep)
        keeper.close(keep=keep)
    assert bool(remaining(shm)) == keep


def test_what_is_not_on_disk_stays_until_it_is_told(keepers: list[Checkpointer], shm: Path) -> None:
    for keeper in keepers:
        term: Any = keeper._term
        (job,) = term._flushing._jobs.values()
        job.pending.persisted._error = OSError("a rank is gone")
        with pytest.raises(CheckpointError, match="the last save is not on disk: a rank is gone"):
            keeper.close()
    assert remaining(shm)
    for keeper in keepers:
        keeper.close()
    assert not remaining(shm)


def test_what_another_process_has_open_stays(shm: Path) -> None:
    path = folder(shm) / f"checkpoint-name.7-{1 << 32:016x}-0-0-0.0"
    path.touch()
    with holder(shm):
        clear_unless_open("name.7", shm)
        assert path.exists()
    clear_unless_open("name.7", shm)
    assert not path.exists()
