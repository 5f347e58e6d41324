"""Pages of files in node memory: there before they are touched, large where they may be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from closeranks.comms.shm import pages
from closeranks.comms.shm.pages import large_page
from closeranks.comms.shm.shared_file import SharedFile
from closeranks.errors import Unavailable

NBYTES = (4 << 20) + 5000


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder in node memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def has_pages(path: Path) -> int:
    """Bytes that a file takes."""
    return path.stat().st_blocks * 512


def test_a_file_is_where_large_pages_may_be(root: Path) -> None:
    made = SharedFile.create(NBYTES, root=root, name="x")
    other = SharedFile.attach(made.path, NBYTES, whole=False)
    assert has_pages(made.path) >= NBYTES
    for file in (made, other):
        assert file.array.ctypes.data % large_page() == 0
        assert file.array.size == NBYTES
        assert not file.array.any()
    made.array[-1], made.array[0] = 1, 2
    assert other.array[[0, -1]].tolist() == [2, 1]
    other.close()
    made.close()


def test_pages_that_nobody_has_asked_for_are_asked_for_in_parts(root: Path) -> None:
    made = SharedFile.create(NBYTES, root=root, name="x", whole=False, asked=4096)
    assert has_pages(made.path) < NBYTES // 2
    made.array[:4096] = 7
    made.ask(2 << 20, NBYTES)
    made.ask(0, 2 << 20)
    made.ask(0, NBYTES)
    assert has_pages(made.path) >= NBYTES
    assert np.flatnonzero(made.array).tolist() == list(range(4096))
    assert made.array[4095] == 7
    made.close()


def test_large_pages_come_where_the_system_gives_any(root: Path) -> None:
    made = SharedFile.create(NBYTES, root=root, name="x")
    if not _says(made, "ShmemPmdMapped"):
        pytest.skip("no large pages here")
    other = SharedFile.attach(made.path, NBYTES)
    made.close()
    assert _says(other, "ShmemPmdMapped") == 4 << 10
    other.close()


@pytest.mark.parametrize("found", ["no number", "536870912"])
def test_without_large_pages_all_goes_on(
    found: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "size").write_text(found)
    monkeypatch.setattr(pages, "_SIZE", root / "size")
    large_page.cache_clear()
    assert large_page() == 4096
    made = SharedFile.create(NBYTES, root=root, name="x")
    large_page.cache_clear()
    assert has_pages(made.path) >= NBYTES
    assert not made.array.any()
    made.close()


def test_what_cannot_be_made_leaves_no_name_and_no_mapping(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Unavailable, match=r"\d+ bytes wanted, \d+ free") as met:
        SharedFile.create(NBYTES, root=root, name="gone")
    assert not list(root.glob("*/gone"))
    assert "gone" not in Path("/proc/self/maps").read_text(), met  # which keeps its frames


def _says(file: SharedFile, what: str) -> int:
    """What the system says of a mapping, in KiB."""
    at = f"{file.array.ctypes.data:x}-"
    text = Path("/proc/self/smaps").read_text()
    own = text[text.index(f"\n{at}") :]
    line = next(line for line in own.splitlines() if line.startswith(what))
    return int(line.split()[1])
