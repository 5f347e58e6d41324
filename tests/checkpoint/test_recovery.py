"""What is lost or damaged comes back bit for bit, from files; one loss more is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.slot_header import ENCODED, WRITING, WRITTEN
from closeranks.checkpoint.placement.stripe_layout import Share
from closeranks.checkpoint.restore.fetch import fetch, of_extent
from closeranks.checkpoint.restore.recovery_search import Slots
from closeranks.checkpoint.restore.redistribution import Delivery
from closeranks.checkpoint.state import rank_image, state_tree
from tests.checkpoint.ground import Ground, contents, make

#: Bytes that ranks have: nothing, one, odd numbers, and one far more than the others.
SIZES: dict[str, Callable[[int], list[int]]] = {
    "equal": lambda n: [5000] * n,
    "nothing": lambda n: [0] * n,
    "odd": lambda n: [1 + 977 * rank % 5003 for rank in range(n)],
    "unequal": lambda n: [300_001, *range(1, n)],
}


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A file system in memory, without leavings."""
    import shutil
    import tempfile

    root = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="closeranks-test-"))
    yield root
    shutil.rmtree(root)


@pytest.fixture
def root(memory: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of this test alone."""
    import tempfile

    del request
    return Path(tempfile.mkdtemp(dir=memory))


def states_of(ground: Ground) -> list[object]:
    """Read back what each rank has saved, from its extent."""
    recovery, alone = ground.recovery(), SingleProcessChannel()
    found = []
    for rank in ground.states:
        layout = ground.layout
        data = np.empty(layout.extent(rank), np.uint8)
        fetch(list(of_extent(layout, rank, 0, data)), alone, recovery.server, recovery.mapped)
        head = rank_image.read(data)
        entry = next(e for e, p in zip(head.leaves, state_tree.paths(head.shape), strict=True)
                     if p == "own")  # fmt: skip
        body = data[layout.head(rank) + head.own + entry["at"] :][: state_tree.nbytes(entry)]
        found.append(state_tree.value(entry, body))
    recovery.close()
    return found


@pytest.mark.share(6)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("members", "parity"), [(n, k) for n in range(3, 9) for k in (1, 2, 3) if k < n]
)
def test_every_pattern_of_losses(root: Path, members: int, parity: int, sizes: str) -> None:
    ground = make(root, SIZES[sizes](members), parity)
    paths = ground.paths()
    kept = {share: contents(path) for share, path in paths.items()}
    saved = {path: path.read_bytes() for path in paths.values()}
    for lost in range(1, min(parity + 2, members)):
        for gone in combinations(range(members), lost):
            for member in gone:
                paths[Share(0, 0, member)].unlink()
            save = ground.newest()
            objection = save.objection()
            if lost > parity:
                assert objection is not None
                assert (objection.lost, objection.tolerated) == (gone, parity)
            else:
                assert objection is None
                recovery = ground.recovery(save)
                assert recovery.rebuild(recovery.verify(parity=True)) == ()
                recovery.settle()
                recovery.close()
                assert {share: contents(path) for share, path in paths.items()} == kept
            for path, data in saved.items():
                path.write_bytes(data)
                path.chmod(0o600)
    for found, state in zip(states_of(ground), ground.states.values(), strict=True):
        np.testing.assert_array_equal(found, state["own"])


@pytest.mark.parametrize("parity", [1, 2])
def test_nodes_of_unequal_ranks_and_several_lanes(root: Path, parity: int) -> None:
    ranks = {0: (0, 3), 1: (1, 4, 6), 2: (2, 5), 3: (7,)}
    sizes = [300_000, 1, 77, 5000, 0, 123_457, 9, 64]
    ground = make(root, sizes, parity, ring=(0, 1, 2, 3), ranks=ranks, lanes=3)
    kept = {share: contents(path) for share, path in ground.paths().items()}
    for gone in combinations(range(4), parity):
        for share, path in ground.paths().items():
            if share.member in gone:
                path.unlink()
        recovery = ground.recovery()
        assert recovery.rebuild(recovery.verify(parity=True)) == ()
        recovery.settle()
        recovery.close()
        assert {share: contents(path) for share, path in ground.paths().items()} == kept
    for found, state in zip(states_of(ground), ground.states.values(), strict=True):
        np.testing.assert_array_equal(found, state["own"])


def _flip(path: Path, *, parity: bool, at: float) -> None:
    """Damage a byte of a slot: at such a share of its data or parity."""
    slot = Slot.attach(path)
    memory = slot.parity[0].memory if parity else slot.data.memory
    memory[int(at * (memory.size - 1))] ^= 0x40
    slot.close()


@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("members", [(0,), (1, 2), (0, 2, 4)])
def test_damage_is_loss_of_what_is_damaged(
    root: Path, members: tuple[int, ...], parity: bool, where: float
) -> None:
    ground = make(root, [100_000] * 5, 1 if len(members) == 1 else 2)
    paths = ground.paths()
    kept = {share: contents(path) for share, path in paths.items()}
    for member in members[:2]:
        _flip(paths[Share(0, 0, member)], parity=parity, at=where)
    for member in members[2:]:
        # a third member, in another row: more members than parities have some damage
        _flip(paths[Share(0, 0, member)], parity=not parity, at=0.25)
    recovery = ground.recovery()
    damaged = recovery.verify(parity=True)
    assert sorted(share.member for share in damaged) == sorted(members)
    if ground.newest().objection(damaged) is None:
        assert recovery.rebuild(damaged) == ()
        recovery.settle()
        assert {share: contents(path) for share, path in paths.items()} == kept
    else:
        assert len(members) > 2
    recovery.close()


def test_damage_in_different_rows_of_more_members_than_parities(root: Path) -> None:
    ground = make(root, [400_000] * 4, 1)
    paths = ground.paths()
    kept = {share: contents(path) for share, path in paths.items()}
    block = ground.layout.block
    for member in range(4):
        slot = Slot.attach(paths[Share(0, 0, member)])
        slot.data.memory[block * (member % 3) + 25_000 * member + 9000] ^= 1
        slot.close()
    recovery = ground.recovery()
    damaged = recovery.verify(parity=True)
    assert len(damaged) == 4
    assert ground.newest().objection(damaged) is None
    assert recovery.rebuild(damaged) == ()
    recovery.settle()
    recovery.close()
    assert {share: contents(path) for share, path in paths.items()} == kept


@pytest.mark.parametrize(("state", "lost", "whole"), [
    (WRITING, (), False), (WRITTEN, (), True), (WRITTEN, (1,), False),
    (ENCODED, (1,), True), (ENCODED, (1, 2), False),
])  # fmt: skip
def test_evidence_counts_not_the_last_word(
    root: Path, state: str, lost: tuple[int, ...], whole: bool
) -> None:
    make(root, [5000] * 4, 1)
    ground = make(root, [5000] * 4, 1, generation=2, state=state)
    newer = {path.name: path for path in root.rglob("*.0")}
    for member in lost:
        next(path for name, path in newer.items() if f"-{member}.0" in name).unlink()
    found = [save for save in ground.saves() if save.objection() is None]
    assert [save.step for save in found] == ([20, 10] if whole else [10])
    recovery = ground.recovery(found[0])
    assert recovery.rebuild(recovery.verify(parity=True)) == ()
    recovery.settle()
    recovery.close()


def test_a_chunk_of_another_time_does_not_fit(root: Path) -> None:
    ground = make(root, [50_000] * 3, 1, generation=2)
    path = ground.paths()[Share(0, 0, 1)]
    other = make(root, [50_000] * 3, 1, generation=5)
    newer = other.paths()[Share(0, 0, 1)]
    one, two = Slot.attach(path), Slot.attach(newer)
    assert one.data.kept.tolist() != two.data.kept.tolist()
    two.data.memory[:], two.data.kept[:] = one.data.memory, one.data.kept
    one.close()
    two.close()
    recovery = other.recovery()
    damaged = recovery.verify(parity=True)
    assert list(damaged) == [Share(0, 0, 1)]
    assert len(damaged[Share(0, 0, 1)].data) == 50_000 // other.layout.chunk + 2
    recovery.close()


def test_what_no_sum_covers_is_not_decoded(root: Path) -> None:
    ranks = {0: (0,), 1: (1,), 2: (2,)}
    ground = make(root, [200_000, 10, 10], 1, ring=(0, 1, 2), ranks=ranks)
    paths = ground.paths()
    kept = {share: contents(path) for share, path in paths.items()}
    slot = Slot.attach(paths[Share(0, 0, 1)])
    assert slot.room.size > slot.data.memory.size
    slot.room[slot.data.memory.size :] = 7
    slot.close()
    paths[Share(0, 0, 0)].unlink()
    recovery = ground.recovery()
    assert recovery.rebuild(recovery.verify(parity=True)) == ()
    recovery.close()
    assert {share: contents(path) for share, path in paths.items()} == kept


def test_what_is_made_anew_of_wrong_parity_is_noticed(root: Path) -> None:
    ground = make(root, [50_000] * 4, 1)
    paths = ground.paths()
    slot = Slot.attach(paths[Share(0, 0, 1)])
    slot.parity[0].memory[100] ^= 1  # wrong when it was made: its sum fits
    slot.parity[0].sum(0, slot.parity[0].memory.size)
    slot.close()
    paths[Share(0, 0, 2)].unlink()
    recovery = ground.recovery()
    assert recovery.rebuild(recovery.verify(parity=True)) == (2,)
    recovery.settle(WRITING)
    recovery.close()
    assert not ground.saves()


def test_a_node_that_comes_back_is_not_believed(root: Path) -> None:
    old = make(root, [5000] * 4, 1, generation=7, epoch=1 << 32 | 5)
    for member in (0, 1, 2):
        old.paths()[Share(0, 0, member)].unlink()
    ground = make(root, [5000] * 4, 1, generation=7, epoch=1 << 32 | 4)
    best = next(save for save in ground.saves() if save.objection() is None)
    assert best.header.epoch == 1 << 32 | 4
    assert len(best.found) == 4


def test_what_is_left_of_another_run_hides_no_whole_save(root: Path) -> None:
    other = make(root, [5000] * 4, 1, epoch=9 << 32, run="f" * 16)
    for member in (0, 1):
        other.paths()[Share(0, 0, member)].unlink()
    make(root, [5000] * 4, 1, epoch=2 << 32)
    assert [save.header.epoch for save in other.saves()] == [2 << 32]


def test_a_state_for_others_goes_through_one_process(root: Path) -> None:
    ground = make(root, [40] * 3, 1)
    from closeranks.checkpoint.state.shards import PerRank

    recovery = ground.recovery()
    into = {"own": PerRank(lambda old, rank: [sum(map(int, part)) for part in old] + [rank]),
            "alike": np.empty(99), "rank": PerRank(lambda old, _: old)}  # fmt: skip
    source = Slots(recovery, SingleProcessChannel())
    state = Delivery(source, SingleProcessChannel(), into).run()
    recovery.close()
    sums = [int(part["own"].sum()) for part in ground.states.values()]
    assert state["own"] == [*sums, 0]
    assert state["rank"] == [0, 1, 2]
    assert state["alike"] is into["alike"]
    np.testing.assert_array_equal(state["alike"], np.arange(99.0))


def test_all_shares_and_states_are_there(root: Path) -> None:
    for members, parity in product((3, 5), (1, 2)):
        ground = make(root, [64] * members, parity, epoch=(members * 10 + parity) << 32)
        assert ground.newest().objection() is None
        assert not ground.newest().lost
