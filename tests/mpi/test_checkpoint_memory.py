"""What checkpoints cost in memory: what the code needs, and no more with time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.checkpoint.memory import slot_file

MIB = 1 << 20


def private_bytes() -> int:
    """Memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def file_bytes(name: str) -> int:
    """Pages of all slots of a name."""
    return sum(path.stat().st_blocks * 512 for path, _ in slot_file.found(name))


@pytest.mark.parametrize("parity", [1, 2])
@pytest.mark.parametrize("largest", [1, 10], ids=["equal", "one large"])
def test_slots_cost_what_the_code_needs(
    world: cr.Communicator, name: str, parity: int, largest: int
) -> None:
    members, keep = max(world.size, parity + 1), 2
    last = world.rank == world.size - 1
    state = {"own": PerRank(np.full(MIB * (largest if last else 1), world.rank, np.uint8))}
    before = private_bytes()
    keeper = Checkpointer(world, name=name, parity=parity, group=members, keep=keep)
    for step in range(keep + 1):
        keeper.save(step, state).committed.wait(30)
    member = (world.size - 1 + largest) * MIB / members  # all are on one node
    needed = (1 + parity / (members - parity)) * member * members * keep
    files, private = file_bytes(name), private_bytes() - before
    keeper.close()  # before anything that may fail on one rank alone
    world.Barrier()
    assert files <= needed + 16 * MIB * world.size
    assert private <= 8 * MIB
    assert not list(slot_file.found(name))


def test_a_hundred_saves_cost_no_more_than_ten(world: cr.Communicator, name: str) -> None:
    keeper = Checkpointer(world, name=name, group=max(world.size, 2))
    own, found = np.zeros(50_000), []
    for step in range(100):
        own[:] = step
        keeper.save(step, {"own": PerRank(own), "step": step}, lazy=bool(step % 2)).copied.wait(30)
        if step in (10, 99):
            keeper.steps()  # which waits for the save
            found.append((private_bytes(), file_bytes(name)))
    keeper.close()
    (private, files), (private_then, files_then) = found
    assert private_then - private <= 4 * MIB  # a leaked state each time would be 35
    assert files_then == files
