"""A save becomes one file of whole arrays, the same from slots that were lost in part."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.checkpoint.disk.export import export, is_covered
from closeranks.checkpoint.erasure.crc32c import crc32c
from closeranks.checkpoint.restore import repair, slot_inventory
from closeranks.checkpoint.restore.generation_choice import Save
from closeranks.checkpoint.restore.recovery_search import Slots
from closeranks.checkpoint.state.rank_image import Description
from closeranks.checkpoint.state.shards import PerRank, Shard
from closeranks.errors import CheckpointError
from tests.checkpoint.ground import collect, make
from tests.checkpoint.restore.test_repair import NODES, quiet, spoil

GRID = np.arange(8 * 12 * 3, dtype=np.float32).reshape(8, 12, 3)


def more(rank: int) -> dict[str, Any]:
    """Give a rank one of 2 x 4 parts of a grid, and one entry of each kind."""
    row, column = 4 * (rank // 4), 3 * (rank % 4)
    mine = np.ascontiguousarray(GRID[row : row + 4, column : column + 3])
    return {
        "grid": Shard(mine, GRID.shape, (row, column, 0)),
        "holes": Shard(np.full(2, rank, np.int16), (20,), (2 * rank,)),
        "padded": Shard(np.arange(5) + 5 * rank, (33,), (5 * rank,), padded=True),
        "alike": {"big": np.arange(50_000), "bf16": np.arange(7).astype(ml_dtypes.bfloat16),
                  "text": "x" * 1000, "time": np.array(["2026-11-24"], "M8[s]"), "none": None,
                  "complex": 1 + 2j, "flag": True, "int": 1 << 70, "small": "line\nline", "a/b": -1,
                  "data": b"\0\xff", "empty": np.zeros((0, 3)), "bool": np.array([True, False]),
                  "record": np.zeros(2, [("a", "<i4"), ("b", ">f8")]), "unicode": np.array(["äb"])},
        "each": PerRank([rank, np.float64(rank)]),
    }  # fmt: skip


def save_of(shm: Path, state: Callable[[int], dict[str, Any]] = more) -> tuple[Save, list[Path]]:
    """Save on four nodes of two ranks, and lose and damage some."""
    ground = make(
        shm, [200, 1, 7, 50, 0, 1_234, 9, 64], 1, ring=(0, 1, 2, 3), ranks=NODES, lanes=2,
        more=state,
    )  # fmt: skip
    folders = collect(ground)
    min(folders[2].iterdir()).unlink()
    spoil(max(folders[1].iterdir()), 5000)
    (found,) = slot_inventory.holdings(slot_inventory.look(folders))
    assert found.save is not None
    return found.save, folders


def write(save: Save, path: Path) -> None:
    """Write a save into a file, from whatever is left of it."""
    damaged = repair.verify(save, quiet).damaged
    assert damaged
    with repair.readable(save, damaged, path.parent) as source:
        export(source, {"step": save.step}, path, quiet)


def test_arrays_are_whole_and_values_once(shm: Path, tmp_path: Path) -> None:
    save, folders = save_of(shm)
    before = {path: path.read_bytes() for folder in folders for path in folder.iterdir()}
    write(save, tmp_path / "state.h5")
    assert {path: path.read_bytes() for folder in folders for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.h5"]
    with h5py.File(tmp_path / "state.h5") as file:
        assert (file.attrs["closeranks_state"], file.attrs["step"]) == (1, 10)
        assert list(file) == ["ranks", "state"]
        np.testing.assert_array_equal(file["state/grid"], GRID)
        assert file["state/grid"].attrs["crc32c"] == crc32c(GRID.tobytes())
        np.testing.assert_array_equal(file["state/padded"], np.arange(33))
        check_alike(file["state/alike"], more(0)["alike"])
        for rank in range(8):
            own = file[f"ranks/{rank:06d}"]
            assert sorted(own) == ["each", "holes", "own", "rank"]
            assert own["rank"][()] == own["each/0"][()] == own["each/1"][()] == rank
            np.testing.assert_array_equal(own["holes"], [rank, rank])
            assert own["holes"].attrs["offset"].tolist() == [2 * rank]
            assert own["holes"].attrs["global_shape"].tolist() == [20]


def check_alike(found: Any, wanted: dict[str, Any]) -> None:
    """Compare what all ranks had alike."""
    for name in ("big", "empty", "bool", "record"):
        np.testing.assert_array_equal(found[name], wanted[name])
        assert found[name].dtype == wanted[name].dtype
        assert found[name].attrs["crc32c"] == crc32c(wanted[name].tobytes())
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("time", "M8[s]")):
        assert found[name].attrs["dtype"] == str(np.dtype(dtype))
        np.testing.assert_array_equal(found[name][...].view(dtype), wanted[name])
    assert found["unicode"][...].tobytes() == wanted["unicode"].tobytes()
    assert found["text"][...].tobytes() == b"x" * 1000
    assert found["small"].asstr()[()] == "line\nline"
    assert found["int"].asstr()[()] == str(1 << 70)
    assert (found["complex"][()], found["flag"][()], found["a%2fb"][()]) == (1 + 2j, True, -1)
    assert found["data"][...].tobytes() == b"\0\xff"
    assert found["none"].shape is None


def test_shards_of_texts_are_whole(shm: Path, tmp_path: Path) -> None:
    words = np.array([["ä" * (row + column) for column in range(4)] for row in range(10)])

    def state(rank: int) -> dict[str, Any]:
        row, column = 2 * (rank // 2), 2 * (rank % 2)  # the last ones reach beyond the whole
        part = np.full((3, 2), "no text", "U14")
        part[: 10 - row] = words[row : row + 3, column : column + 2]
        short = np.array(words[rank, :3].tolist())  # as long as its longest
        plain = np.char.encode(short, "utf-8")
        return {
            "grid": Shard(part, (8, 4), (row, column), padded=True),
            "short": Shard(short[None], (8, 3), (rank, 0)),
            "plain": Shard(plain[None], (8, 3), (rank, 0)),
            "empty": Shard(np.zeros((0, 2), "U5"), (0, 2), (0, 0)),
        }

    write(save_of(shm, state)[0], tmp_path / "state.h5")
    with h5py.File(tmp_path / "state.h5") as file:
        for name, wanted in (("grid", words[:8]), ("short", words[:8, :3])):
            found = file[f"state/{name}"]
            bare = np.frombuffer(found[...].tobytes(), found.attrs["dtype"])
            np.testing.assert_array_equal(bare.reshape(found.attrs["shape"]), wanted)
            assert found.attrs["crc32c"] == crc32c(found[...].tobytes())
            assert found[2, 1].tobytes().decode("utf-32").rstrip("\0") == wanted[2, 1]
        np.testing.assert_array_equal(
            np.char.decode(file["state/plain"][...], "utf-8"), words[:8, :3]
        )
        assert file["state/empty"].attrs["shape"].tolist() == [0, 2]
        assert sorted(file["ranks/000000"]) == ["own", "rank"]


def test_shards_of_other_types_are_told_by_name(shm: Path, tmp_path: Path) -> None:
    def state(rank: int) -> dict[str, Any]:
        own = np.zeros(2, np.float32 if rank == 5 else np.float64)
        return {"model": {"w": Shard(own, (16,), (2 * rank,))}}

    with pytest.raises(CheckpointError, match="model/w has parts of float32 and float64; save all"):
        write(save_of(shm, state)[0], tmp_path / "state.h5")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_before_hdf5_meets_it(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, _ = save_of(shm)
    write(save, tmp_path / "whole.h5")
    reserve = os.posix_fallocate

    def full(handle: int, start: int, nbytes: int) -> None:
        if start > 400_000:  # in the midst of it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(handle, start, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CheckpointError, match="not written: No space left on device; make room"):
        write(save, tmp_path / "state.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.h5"]


def test_a_forged_description_leaves_no_file(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, _ = save_of(shm)
    heads = Slots.heads
    changes: list[Any] = [
        lambda leaves: leaves[0].update(shape=[1 << 50]), lambda leaves: leaves[0].pop("kind"),
        lambda leaves: leaves.pop(), lambda leaves: leaves[0].update(dtype="O"),
        lambda leaves: leaves[0].update(at=-8),
    ]  # fmt: skip
    for change in changes:

        def forged(self: Slots, ranks: Any, change: Any = change) -> dict[int, Description]:
            found = heads(self, ranks)
            change(found[0].leaves)
            return found

        monkeypatch.setattr(Slots, "heads", forged)
        with pytest.raises(CheckpointError, match=r"contradicts itself|different trees|never read"):
            write(save, tmp_path / "state.h5")
        assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_nothing_is_an_error(shm: Path) -> None:
    save, _ = save_of(shm)
    with (
        repair.readable(save, {}, shm) as source,
        pytest.raises(CheckpointError, match=r"not written: .*make room there"),
    ):
        export(source, {}, Path("/proc/state.h5"), quiet)


BOXES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)),
    max_size=6,
)


@given(BOXES, st.integers(0, 4), st.integers(0, 4))
def test_boxes_fill_an_array_or_not(boxes: list[tuple[int, ...]], rows: int, columns: int) -> None:
    found = [((a, b), (min(m, rows - a), min(n, columns - b))) for a, b, m, n in boxes
             if a <= rows and b <= columns]  # fmt: skip
    met = np.zeros((rows, columns), bool)
    for (a, b), (m, n) in found:
        met[a : a + m, b : b + n] = True
    assert is_covered((rows, columns), found) == met.all()


def test_many_parts_are_no_trouble() -> None:
    parts = [((64 * a, 64 * b), (64, 64)) for a, b in product(range(100), range(100))]
    assert is_covered((6400, 6400), parts)
    assert not is_covered((6400, 6400), [*parts[:-1], parts[0]])
