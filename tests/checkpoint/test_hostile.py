"""What others have put where slots go: a clear error on every rank, and the job goes on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.placement.slot_header import Header
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore import slot_inventory
from closeranks.checkpoint.restore.generation_choice import saves
from closeranks.checkpoint.restore.recovery_search import SaveRecovery
from closeranks.comms.shm import shared_file
from closeranks.errors import CheckpointError, Unavailable
from tests.checkpoint.ground import make
from tests.checkpoint.hearing import Company
from tests.checkpoint.mishaps import hurt
from tests.checkpoint.points import set_up
from tests.checkpoint.stage import Killed, Stage, here

#: Of nobody.
NOBODY = 65534
#: Of each rank; a node's data are cut in two, for there are two ranks on one.
NODES = (0, 0, 1, 2)
SLOTS = 3 * 2


@pytest.fixture
def root(who: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        Path(made).chmod(0o755)
        for node in set(NODES):
            (Path(made) / str(node)).mkdir()
            (Path(made) / str(node)).chmod(0o1777)
        yield Path(made)


@pytest.fixture(params=["ourselves", "nobody"])
def who(request: pytest.FixtureRequest) -> int:
    """As whom the ranks run."""
    if request.param == "ourselves":
        return os.getuid()
    if os.getuid() != 0:
        pytest.skip("only root can be nobody")
    return NOBODY


@contextmanager
def being(user: int) -> Iterator[None]:
    """Be another user for a while."""
    if user == os.getuid():
        yield
        return
    groups, group = os.getgroups(), os.getgid()
    os.setgroups([])
    os.setresgid(user, user, group)
    os.setresuid(user, user, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(group, group, group)
        os.setgroups(groups)


def ranks(
    root: Path,
    user: int,
    part: Callable[[Checkpointer, int], Any],
    *,
    where: str = "",
    doomed: int | None = None,
) -> list[Any]:
    """Do something on four ranks of three nodes; gives what each has returned or raised.

    One of them may be doomed: to be killed where a point begins so, the others soon after.
    """

    def run(rank: int) -> Any:
        comm = Company(stage, rank, NODES, 0)
        keeper = Checkpointer(comm, name="hostile", directory=root / str(NODES[rank]))  # type: ignore[arg-type]
        try:
            return part(keeper, rank)
        finally:
            keeper._leave()

    stage = Stage(Random(0), faults=False)
    fates = [0 if rank == doomed else None for rank in range(len(NODES))]
    with pytest.MonkeyPatch.context() as patch, being(user):
        set_up(patch)
        return stage.play([partial(run, rank) for rank in range(len(NODES))], fates, where)


def save(keeper: Checkpointer, rank: int, step: int = 1) -> None:
    keeper.save(step, {"own": PerRank(np.full(5000, rank + step))}).committed.wait(10)


def restored(keeper: Checkpointer, rank: int) -> Any:
    """Restore, compare, and save again."""
    found = keeper.restore()
    assert found is not None
    np.testing.assert_array_equal(found[1]["own"], np.full(5000, rank + found[0]))
    save(keeper, rank, found[0] + 1)
    return found[0], len(keeper.skipped)


@pytest.mark.parametrize("trap", ["link", "stranger", "open", "file"])
def test_a_folder_that_is_not_ours_alone(root: Path, who: int, trap: str) -> None:
    folder, elsewhere = root / "1" / f"closeranks-{who}", root / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    if trap == "link":
        folder.symlink_to(elsewhere)
    elif trap == "file":
        folder.touch(mode=0o600)
        os.chown(folder, who, -1)
    else:
        folder.mkdir(mode=0o700 if trap == "stranger" else 0o777)
        folder.chmod(0o700 if trap == "stranger" else 0o777)
        if trap == "stranger" and os.getuid() != 0:
            pytest.skip("only root can make a stranger's folder")
        stranger = 0 if who else NOBODY
        os.chown(folder, stranger if trap == "stranger" else who, -1)

    def part(keeper: Checkpointer, rank: int) -> list[str]:
        told = []
        for step in (keeper.restore, partial(save, keeper, rank)):
            with pytest.raises(CheckpointError, match=r"node memory .*1/closeranks-\d+") as met:
                step()
            told.append(str(met.value))
        return told

    found = ranks(root, who, part)
    assert found == [found[0]] * 4
    assert not list(elsewhere.iterdir())
    folder.rmdir() if folder.is_dir() and not folder.is_symlink() else folder.unlink()
    assert ranks(root, who, save) == [None] * 4
    assert ranks(root, who, restored) == [(1, 0)] * 4


@pytest.mark.parametrize("trap", ["cut", "forge", "headers", "link", "pipe", "folder"])
def test_a_slot_that_is_none(root: Path, who: int, trap: str) -> None:
    assert ranks(root, who, save) == [None] * 4
    path = min((root / "1" / f"closeranks-{who}").iterdir())
    with being(who):
        if trap in ("cut", "forge", "headers"):
            hurt(path, trap, Random(1))
        else:
            path.unlink()
    if trap == "link":
        path.symlink_to("/etc/passwd")
    elif trap == "pipe":
        os.mkfifo(path, 0o600)
    elif trap == "folder":
        path.mkdir()
    told = ranks(root, who, restored)
    if trap == "folder":  # what is in its place cannot be taken away
        assert all(isinstance(one, CheckpointError) for one in told), told
        path.rmdir()
        told = ranks(root, who, restored)
    assert told == [(1, 0)] * 4
    left = [name.name for node in set(NODES) for name in (root / str(node)).glob("*/*")]
    assert len(left) == SLOTS, left  # those of the save after it


@pytest.mark.parametrize("who", [-1])
@pytest.mark.parametrize("where", ["pwrite", "pwrite-done", "replace", "replace-done", "reserve"])
def test_a_first_save_that_was_cut_off_as_slots_were_made_is_nothing(
    root: Path, where: str, who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for doomed in range(len(NODES)):
        told = ranks(root, os.getuid(), save, where=where, doomed=doomed)
        assert any(isinstance(one, Killed) for one in told), told
        places = [path for node in set(NODES) for path in (root / str(node)).iterdir()]
        assert {
            holding.verdict for holding in slot_inventory.holdings(slot_inventory.look(places))
        } <= {"it was being written"}
        assert ranks(root, os.getuid(), lambda keeper, _: keeper.restore()) == [None] * 4
    monkeypatch.setattr(shared_file, "_UNLOCKED_S", -1.0)
    assert ranks(root, os.getuid(), save) == [None] * 4
    assert ranks(root, os.getuid(), restored) == [(1, 0)] * 4
    left = [path for place in places for path in place.iterdir()]
    assert len(left) == SLOTS, left  # nothing of those that were cut off


@pytest.mark.parametrize("who", [-1])
@pytest.mark.parametrize("nbytes", [0, 100, 4096, None])
def test_slots_of_zeros_are_damaged(root: Path, nbytes: int | None, who: int) -> None:
    assert ranks(root, os.getuid(), save) == [None] * 4
    for node in set(NODES):
        for path in (root / str(node)).glob("closeranks-*/*"):
            path.write_bytes(bytes(path.stat().st_size if nbytes is None else nbytes))
    told = ranks(root, os.getuid(), lambda keeper, _: keeper.restore())
    assert all(isinstance(one, CheckpointError) for one in told), told
    assert {"no header is whole" in str(one) for one in told} == {True}


@pytest.mark.parametrize("who", [-1])
def test_a_rank_that_cannot_map_what_others_serve_is_an_error_on_all(
    root: Path, who: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, failed = SaveRecovery.mapped, set[int]()

    def unequal(keeper: Checkpointer, rank: int) -> None:  # so that one's data are beside others'
        keeper.save(1, {"own": PerRank(np.full(5000 * rank, rank))}).committed.wait(10)

    def called(recovery: SaveRecovery, share: Share) -> slot_file.Slot | None:
        is_here = recovery._node[share] == recovery._nodes.here
        if is_here and recovery.server(share) != recovery._nodes.rank == 1:
            failed.add(here().number)
            raise Unavailable("node memory: too many open files", "ulimit -n")
        return mapped(recovery, share)

    assert ranks(root, os.getuid(), unequal) == [None] * 4
    monkeypatch.setattr(SaveRecovery, "mapped", called)
    told = ranks(root, os.getuid(), lambda keeper, _: keeper.restore())
    assert failed == {1}
    assert all(isinstance(one, CheckpointError) for one in told), told
    assert len({str(one) for one in told}) == 1


@pytest.mark.parametrize("who", [-1])
def test_what_cannot_be_removed_keeps_nothing_else(root: Path, who: int) -> None:
    who = os.getuid()
    assert ranks(root, who, save) == [None] * 4
    folder = root / "0" / f"closeranks-{who}"
    for epoch in (1, 2):
        (folder / f"checkpoint-hostile-{epoch:016x}-0-0-0.0").mkdir()
    assert ranks(root, who, restored) == [(1, 0)] * 4
    assert sum(path.is_file() for path in folder.iterdir()) == SLOTS / 3


@pytest.mark.parametrize("who", [-1])
@pytest.mark.parametrize("change", [
    {"groups": 1 << 60}, {"world": 3}, {"world": 1 << 60}, {"groups": 2},
])  # fmt: skip
def test_a_forged_save_is_no_save(root: Path, change: dict[str, int], who: int) -> None:
    ground = make(root, [100] * 4, 1)
    for path in ground.paths().values():
        slot = slot_file.Slot.attach(path)
        slot.write(replace(slot.header, **change))  # type: ignore[arg-type]
        slot.close()
    (save,) = ground.saves()
    assert save.objection() is not None


def test_ranks_that_are_not_those_of_the_job_are_no_save() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        save = make(Path(made), [100] * 3, 1).newest()
    sizes = {0: save.layouts[0].sizes[0], 1: save.layouts[0].sizes[1], 7: save.layouts[0].sizes[2]}
    other = replace(save.layouts[0], sizes=sizes, ranks={0: (0, 1, 7)})
    found = [one._replace(header=replace(one.header, layout=other)) for one in save.found.values()]
    objection = saves(found)[0].objection()
    assert objection is not None
    assert "3 ranks of 3, or others" in objection.text


@pytest.mark.parametrize("epoch", [-1, 1 << 62, 1 << 200])
def test_an_epoch_that_no_name_holds_is_refused(epoch: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        header = make(Path(made), [100] * 3, 1).newest().found[Share(0, 0, 1)].header
    assert Header.decode(header.encode()) == header
    with pytest.raises(CheckpointError, match="epoch"):
        Header.decode(replace(header, epoch=epoch).encode())
