"""Slots that were collected from nodes are made whole without MPI, or left as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from closeranks.checkpoint.memory.slot_file import Slot, look
from closeranks.checkpoint.placement.slot_header import COMMITTED, WRITTEN
from closeranks.checkpoint.restore import repair, slot_inventory
from closeranks.checkpoint.restore.slot_inventory import Holding
from closeranks.errors import CheckpointError, TooManyErasures
from tests.checkpoint.ground import Ground, collect, contents, make

NODES = {node: (2 * node, 2 * node + 1) for node in range(4)}


def quiet(_: int) -> None:
    """Look at no progress."""


def saved(shm: Path, parity: int = 1, **more: object) -> tuple[Ground, list[Path]]:
    """Save on four nodes of two ranks, and collect their slots."""
    sizes = [200_000, 1, 77, 5000, 0, 123_457, 9, 64]
    ground = make(shm, sizes, parity, ring=(0, 1, 2, 3), ranks=NODES, lanes=2, **more)  # type: ignore[arg-type]
    return ground, collect(ground)


def seen(folders: list[Path]) -> Holding:
    """Find the only save in folders."""
    (one,) = slot_inventory.holdings(slot_inventory.look(slot_inventory.places(folders)))
    return one


def everything(folders: list[Path]) -> dict[Path, bytes]:
    """Read all files, hidden ones and those below too."""
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*")}


def mend(folders: list[Path], into: Path | None = None) -> list[Path]:
    """Verify and repair what is in folders."""
    save = seen(folders).save
    assert save is not None
    verdict = repair.verify(save, quiet)
    return repair.repair(save, verdict.damaged, folders, into)


@pytest.mark.parametrize("parity", [1, 2])
def test_lost_nodes_come_back_in_another_folder(shm: Path, parity: int) -> None:
    _, folders = saved(shm, parity)
    kept = {path.name: contents(path) for folder in folders for path in folder.iterdir()}
    for gone in combinations(range(4), parity):
        away, new = shm / "away", shm / "new"
        away.mkdir()
        new.mkdir(0o700)
        for node in gone:
            folders[node].rename(away / str(node))
        left = [folder for folder in folders if folder.exists()]
        before = everything(left)
        made = mend(left, new)
        assert everything(left) == before
        assert sorted(made) == sorted(new.iterdir())
        assert {path.name: contents(path) for path in made}.items() <= kept.items()
        assert len(made) == 2 * parity
        assert repair.verify(seen([*left, new]).save, quiet).outcome == repair.WHOLE  # type: ignore[arg-type]
        assert {look(path).state for path in made} == {COMMITTED}
        for path in made:
            path.unlink()
        new.rmdir()
        for node in gone:
            (away / str(node)).rename(folders[node])
        away.rmdir()


def test_lost_shares_go_where_fewest_of_their_group_are(shm: Path) -> None:
    _, folders = saved(shm)
    for path in folders[2].iterdir():
        path.unlink()
    assert {path.parent for path in mend(folders)} == {folders[2]}


def spoil(path: Path, at: int, *, parity: bool = False, sums: bool = False) -> None:
    """Change a byte of a slot; with its check sum it was wrong when it was written."""
    slot = Slot.attach(path)
    area = slot.parity[0] if parity else slot.data
    area.memory[at] ^= 1
    if sums:
        area.sum(0, area.memory.size)
    slot.close()


def test_damage_is_repaired_where_it_is(shm: Path) -> None:
    _, folders = saved(shm)
    kept = {path: contents(path) for folder in folders for path in folder.iterdir()}
    hurt = [min(folders[0].iterdir()), sorted(folders[1].iterdir())[1]]
    spoil(hurt[0], 7)
    spoil(hurt[1], 9, parity=True)
    inode = hurt[0].stat().st_ino
    verdict = repair.verify(seen(folders).save, quiet)  # type: ignore[arg-type]
    assert verdict[:2] == (repair.REPAIRABLE, "2 chunks of 2 shares damaged")
    assert sorted(mend(folders)) == sorted(hurt)
    assert {path: contents(path) for path in kept} == kept
    assert hurt[0].stat().st_ino != inode  # a copy took its place
    assert set(everything(folders)) == set(kept)


@pytest.mark.parametrize("spoiled", ["too much lost", "wrong parity"])
def test_what_cannot_be_repaired_stays_as_it_is(shm: Path, spoiled: str) -> None:
    ground, folders = saved(shm)
    error: type[Exception] = TooManyErasures
    spoil(min(folders[0].iterdir()), 2 * ground.layout.block + 7)  # in row 1
    if spoiled == "too much lost":
        for path in folders[3].iterdir():
            path.unlink()
    else:
        spoil(min(folders[1].iterdir()), 9, parity=True, sums=True)
        error = CheckpointError
    before = everything(folders)
    with pytest.raises(error, match=r"tolerates 1|made anew .* is wrong"):
        mend(folders)
    assert everything(folders) == before


def test_what_a_killed_repair_has_left_goes_in_time(shm: Path) -> None:
    old, new = shm / ".closeranks-repair-old00000", shm / ".closeranks-repair-new00000"
    for left in (old, new):
        (left / "below").mkdir(parents=True)
    os.utime(old, (1e9, 1e9))
    with slot_inventory.scratch(shm) as work:
        assert sorted(shm.iterdir()) == sorted([new, work])
    assert list(shm.iterdir()) == [new]


def test_parity_that_was_never_made_is_made(shm: Path) -> None:
    _, folders = saved(shm, state=WRITTEN)
    save = seen(folders).save
    assert save is not None
    verdict = repair.verify(save, quiet)
    assert verdict[:2] == (repair.REPAIRABLE, "8 shares without parity")
    assert len(mend(folders)) == 8
    assert repair.verify(seen(folders).save, quiet).outcome == repair.WHOLE  # type: ignore[arg-type]
    for path in folders[1].iterdir():
        path.unlink()
    assert seen(folders).objection is None


def test_a_slot_of_the_same_name_is_not_replaced(shm: Path) -> None:
    _, folders = saved(shm)
    path = min(folders[1].iterdir())
    slot = Slot.attach(path)
    slot.write(replace(slot.header, generation=9))
    slot.close()
    old = next(
        one
        for one in slot_inventory.holdings(slot_inventory.look(folders))
        if one.header is not None and one.header.generation == 1
    )
    assert old.save is not None
    with pytest.raises(CheckpointError, match="--into"):
        repair.repair(old.save, {}, [folders[1]])
    path.write_bytes(b"clsrslot")  # nothing can be read of it: that is what is repaired
    assert repair.repair(old.save, {}, folders, folders[1]) == [path]


@pytest.mark.parametrize("change", [
    lambda slot: slot.write(replace(slot.header, generation=9)), lambda slot: slot.path.unlink(),
])  # fmt: skip
def test_a_slot_that_is_overwritten_meanwhile_is_noticed(
    shm: Path, change: Callable[[Slot], None]
) -> None:
    _, folders = saved(shm)
    save = seen(folders).save
    assert save is not None

    def overwrite(_: int) -> None:
        slot = Slot.attach(path)
        change(slot)
        slot.close()

    path = next(iter(folders[0].iterdir()))
    with pytest.raises(CheckpointError, match="removed or overwritten meanwhile"):
        repair.verify(save, lambda nbytes: overwrite(nbytes) if path.exists() else None)
