"""What a slot is after a crash, a forger or a full file system have been there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from closeranks.checkpoint.erasure.crc32c import Area, sums
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.memory.slot_file import Slot, found, look, path_of
from closeranks.checkpoint.placement.slot_header import COMMITTED, ENCODED, WRITING, Header
from closeranks.checkpoint.placement.stripe_layout import Share, Size, StripeLayout
from closeranks.errors import CheckpointError, Unavailable

LAYOUT = StripeLayout(
    group=0, parity=1, lanes=1, ring=(0, 1, 2), ranks={0: (0,), 1: (1,), 2: (2,)},
    sizes={rank: Size(100, 30_000) for rank in range(3)}, chunk=4096,
)  # fmt: skip
HEADER = Header(
    name="test", run="a" * 16, epoch=1 << 32, generation=3, step=30, state=WRITING,
    world=3, groups=1, share=Share(0, 0, 1), layout=LAYOUT,
)  # fmt: skip


@pytest.fixture
def root() -> Iterator[Path]:
    import shutil
    import tempfile

    made = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="closeranks-test-"))
    yield made
    shutil.rmtree(made)


def test_it_says_what_was_last_written(root: Path) -> None:
    slot = Slot.create(HEADER, 0, root)
    for state in (ENCODED, COMMITTED, WRITING, ENCODED):
        slot.write(replace(HEADER, state=state))
        assert look(slot.path) == slot.header == replace(HEADER, state=state)
    assert [path for path, _ in found("test", root)] == [slot.path]
    assert not list(found("tes", root))
    slot.remove()
    assert not list(found("test", root))


def test_a_header_torn_anywhere_leaves_the_one_before(root: Path) -> None:
    slot = Slot.create(HEADER, 0, root)
    slot.write(replace(HEADER, state=ENCODED))
    before = slot.path.read_bytes()
    slot.write(replace(HEADER, state=COMMITTED))
    after = slot.path.read_bytes()
    changed = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    first, last = min(changed), max(changed) + 1
    for cut in {first, first + 1, first + 8, first + 16, (first + last) // 2, last - 1}:
        for torn in (after[:cut] + before[cut:last], before[:cut] + after[cut:last]):
            slot.path.write_bytes(torn + after[last:])
            assert look(slot.path).state in (ENCODED, COMMITTED)
            assert look(slot.path).share == HEADER.share


def test_both_headers_gone_is_an_error(root: Path) -> None:
    slot = Slot.create(HEADER, 0, root)
    data = bytearray(slot.path.read_bytes())
    data[: slot._room * 2] = bytes(slot._room * 2)
    slot.path.write_bytes(data)
    with pytest.raises(CheckpointError, match="no header is whole"):
        Slot.attach(slot.path)


@pytest.mark.parametrize("nbytes", [0, 10, 5000, -1])
def test_a_truncated_slot_is_an_error_not_a_signal(root: Path, nbytes: int) -> None:
    slot = Slot.create(HEADER, 0, root)
    size = slot.path.stat().st_size
    slot.close()
    os.truncate(slot.path, nbytes % size)
    with pytest.raises(CheckpointError, match=r"no header is whole|its header says"):
        Slot.attach(slot.path)


@pytest.mark.parametrize("change", [
    {"ring": [0, 1, 9]}, {"parity": 3}, {"parity": 0}, {"chunk": 0}, {"chunk": 100},
    {"lanes": 1 << 40}, {"lanes": 1 << 16}, {"lanes": 0},
    {"sizes": [[0, 1, 1 << 70]]}, {"sizes": []}, {"ranks": []},
    {"ring": [0] * 300}, {"ranks": [[0, []], [1, [1]], [2, [2]]]}, {"group": -1},
    {"sizes": [[0, 1, -5], [1, 1, 1], [2, 1, 1]]}, {"sizes": "x"},
])  # fmt: skip
def test_a_forged_layout_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="no layout"):
        StripeLayout.from_json({**LAYOUT.to_json(), **change})


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"{" * 100_000, b'{"layout": 3}', b"\xff"])
def test_a_forged_header_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"no header|no layout"):
        Header.decode(text)


def test_a_newer_format_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(slot_file, "FORMAT", 99)
        slot = Slot.create(HEADER, 0, root)
    with pytest.raises(CheckpointError, match="format 99, newer than 1"):
        look(slot.path)


@pytest.mark.parametrize("at", range(64))
def test_a_byte_damaged_anywhere_leaves_the_header_before(root: Path, at: int) -> None:
    slot = Slot.create(HEADER, 0, root)
    slot.write(replace(HEADER, state=ENCODED))
    slot.file.array[slot._count % 2 * slot._room + at] ^= 0xFF
    assert look(slot.path) == replace(HEADER, state=WRITING)


def test_a_full_file_system_is_an_error(root: Path) -> None:
    room = os.statvfs(root)
    free = room.f_bavail * room.f_frsize
    sizes = {rank: Size(100, 2 * free) for rank in range(3)}
    with pytest.raises(Unavailable, match="bytes wanted"):
        Slot.create(replace(HEADER, layout=replace(LAYOUT, sizes=sizes)), 0, root)
    assert not list(found("test", root))


def test_links_and_strangers_are_refused(root: Path) -> None:
    slot = Slot.create(HEADER, 0, root)
    link = path_of(HEADER, 1, root)
    link.symlink_to(slot.path)
    with pytest.raises(Unavailable):
        look(link)
    if os.geteuid() == 0:
        os.chown(slot.path, 65534, 65534)
        with pytest.raises(Unavailable, match="not a file of this user"):
            look(slot.path)


def test_offsets_beyond_four_gibibytes(tmp_path: Path) -> None:
    sizes = {rank: Size(100, 9 << 30) for rank in range(3)}
    layout = replace(LAYOUT, sizes=sizes, chunk=1 << 20)
    assert layout.block > 4 << 30
    pieces = list(layout.pieces(1))
    assert sum(piece.nbytes for piece in pieces) == layout.extent(1)
    assert pieces[-1].at + pieces[-1].nbytes <= layout.data_bytes
    filled = layout.filled(Share(0, 0, 1))
    assert filled > 8 << 30
    # a sparse file: it takes no room but for what is written
    memory = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(filled,))
    area = Area(np.asarray(memory), np.zeros(filled >> 20, np.uint32), 1 << 20, 7)
    data = np.arange(3 << 20, dtype=np.uint32).view(np.uint8)[: (2 << 20) + 100]
    for at in ((2 << 30) - 17, (4 << 30) - (1 << 20) + 5, (8 << 30) + 1):
        area.put(at, data)
        np.testing.assert_array_equal(memory[at : at + data.size], data)
    whole = (8 << 30) >> 20
    part = Area(area.memory[whole << 20 :][: 2 << 20], area.kept[whole : whole + 2], 1 << 20, 0)
    expected = crc32c_of(part.memory[1 << 20 :], 7 + (whole + 1) * 0x9E3779B1)
    assert part.kept[1] == expected


def crc32c_of(data: np.ndarray[tuple[int], np.dtype[np.uint8]], seed: int) -> int:
    """The sum of one chunk from its seed."""
    return int(sums(np.ascontiguousarray(data), data.size, [seed & 0xFFFFFFFF])[0])
