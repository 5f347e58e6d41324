"""What is erased or corrupted, on which members, and which step comes back then, if any.

The matrix of FTI's tests: {erase, corrupt} x {data, parity, header} x {one member,
several, one too many} x {neighbours or not} x {the newest step, both} x parity.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint import Checkpointer, PerRank
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.errors import TooManyErasures
from tests.checkpoint.ground import NAME, Ground, contents, make
from tests.checkpoint.hearing import Company
from tests.checkpoint.mishaps import hurt
from tests.checkpoint.points import set_up
from tests.checkpoint.stage import Stage

MEMBERS = 8
#: What is hurt.
WHOLE_SLOTS = ("erase", "cut", "headers", "forge")
HURTS = (*WHOLE_SLOTS, "all data", "header", "all parity")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        yield Path(made)


def disrupt(path: Path, how: str) -> None:
    """Hurt a slot."""
    if how.startswith("all"):
        slot = Slot.attach(path)
        for area in (slot.data,) if how == "all data" else slot.parity:
            area.memory[:] ^= 0x11
        slot.close()
    else:
        hurt(path, how, Random(str(path)))


def restored(root: Path, parity: int) -> Any:
    """Restore on one rank; gives what came back, why no later step did, and what is whole then."""

    def part() -> Any:
        comm = Company(stage, 0, [0], 0)
        keeper = Checkpointer(comm, name=NAME, parity=parity, directory=root)  # type: ignore[arg-type]
        each = PerRank(lambda old, _: old)
        into = {"own": each, "alike": np.zeros(99), "rank": each}
        found = keeper.restore(into=into)
        assert found is not None
        whole = keeper.verify()[found[0]]
        keeper.close(keep=True)
        return (*found, keeper.skipped, whole)

    stage = Stage(Random(0), faults=False)
    with pytest.MonkeyPatch.context() as patch:
        set_up(patch)
        return stage.play([part], [None])[0]


def patterns(parity: int) -> Iterator[tuple[int, ...]]:
    """Give members: one, as many as may be lost, one more; neighbours or not."""
    for count in sorted({1, parity, parity + 1}):
        yield tuple(range(3, 3 + count))
        yield tuple(range(0, 2 * count, 2))


def worst_row(how: str, members: tuple[int, ...], parity: int) -> int:
    """Count the blocks that are lost at most in a row: its parities are on those from it on."""
    if how in WHOLE_SLOTS:
        return len(members)
    if how == "all data":
        return max(sum((member - row) % MEMBERS >= parity for member in members)
                   for row in range(MEMBERS))  # fmt: skip
    return 0


@pytest.mark.share(4)
@pytest.mark.parametrize("parity", [1, 2, 3])
@pytest.mark.parametrize("how", HURTS)
def test_which_step_comes_back(root: Path, how: str, parity: int) -> None:
    (root / "whole").mkdir()
    grounds = [make(root / "whole", [900] * MEMBERS, parity, generation=at) for at in (1, 2)]
    for number, (members, both) in enumerate(product(patterns(parity), (False, True))):
        folder = root / str(number)
        shutil.copytree(root / "whole", folder)
        kept = {at: slots_of(folder, at) for at in (0, 1)}  # generation 2 is in place 0
        for place, slots in kept.items():
            for member in members if both or place == 0 else ():
                disrupt(slots[Share(0, 0, member)][0], how)
        is_lost = worst_row(how, members, parity) > parity
        found = restored(folder, parity)
        if is_lost and both:
            assert isinstance(found, TooManyErasures), found
            assert (found.lost, found.tolerated) == (members, parity)
            assert "step 20" in str(found)
            assert "step 10" in str(found)
            continue
        assert not isinstance(found, BaseException), found
        step, state, skipped, whole = found
        assert step == (10 if is_lost else 20)
        told = f"group 0 has lost {len(members)} members, its code tolerates {parity}"
        assert skipped == ((f"step 20: {told}",) if is_lost else ())
        check(state, grounds[0] if is_lost else grounds[1])
        assert whole == "whole"
        assert {share: contents(path) for share, (path, _) in kept[int(is_lost)].items()} == {
            share: before for share, (_, before) in kept[int(is_lost)].items()
        }


def test_what_was_skipped_is_there_for_who_comes_back(root: Path) -> None:
    older, newer = (make(root, [900] * MEMBERS, 1, generation=at) for at in (1, 2))
    (away := root / "away").mkdir()
    gone = [slots_of(root, 0)[Share(0, 0, member)][0] for member in (2, 5)]
    for path in gone:  # with nodes that do not answer
        path.rename(away / path.name)
    step, state, skipped, _ = restored(root, 1)
    assert (step, len(skipped)) == (10, 1)
    check(state, older)
    for path in gone:
        (away / path.name).rename(path)
    step, state, skipped, whole = restored(root, 1)
    assert (step, skipped, whole) == (20, (), "whole")
    check(state, newer)


def slots_of(root: Path, place: int) -> dict[Share, tuple[Path, tuple[bytes, ...]]]:
    """Give the slots of a place, and what is in them."""
    found = sorted(root.rglob(f"*.{place}"))
    return {Share(0, 0, member): (path, contents(path)) for member, path in enumerate(found)}


def check(state: Any, ground: Ground) -> None:
    """Compare bit for bit."""
    assert state["rank"] == list(range(MEMBERS))
    for mine, saved in zip(state["own"], ground.states.values(), strict=True):
        np.testing.assert_array_equal(mine, saved["own"])
    np.testing.assert_array_equal(state["alike"], np.arange(99.0))
