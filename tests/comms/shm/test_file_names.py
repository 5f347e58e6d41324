"""What is tidied away in folders of users: what has a full name of ours, and is ours."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkdtemp

import pytest

from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.restore import slot_inventory
from closeranks.comms.shm.shared_folder import is_own_folder

PREFIX = ".closeranks-x-"


def test_folders_that_were_drawn_are_own(tmp_path: Path) -> None:
    assert is_own_folder(Path(mkdtemp(prefix=PREFIX, dir=tmp_path)), PREFIX)


@pytest.mark.parametrize("name", ["data", f"{PREFIX}notes", f"{PREFIX}notes_of_1999", PREFIX])
def test_others_are_not(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert not is_own_folder(tmp_path / name, PREFIX)


def test_neither_are_links_files_and_what_is_not_there(tmp_path: Path) -> None:
    own = Path(mkdtemp(prefix=PREFIX, dir=tmp_path))
    (tmp_path / f"{PREFIX}abcdefg0").symlink_to(own)
    (tmp_path / f"{PREFIX}abcdefg1").touch()
    assert not any(is_own_folder(tmp_path / f"{PREFIX}abcdefg{at}", PREFIX) for at in range(3))


def test_a_repair_leaves_what_users_have_beside_it(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in (".repair-notes", ".closeranks-repair-notes")]
    for path in mine:
        path.mkdir()
        (path / "text").write_text("mine")
        os.utime(path, (1, 1))
    with slot_inventory.scratch(tmp_path) as work:
        assert is_own_folder(work, ".closeranks-repair-")
    assert sorted(tmp_path.iterdir()) == sorted(mine)
    assert all((path / "text").exists() for path in mine)


def test_files_that_were_begun_have_a_whole_name() -> None:
    whole = "node-000001.h5"
    assert saved_files.is_begun(f".{whole}.{'0a' * 8}", whole)
    for name in (f".{whole}.swp", f".{whole}.bak", whole, f".node-000002.h5.{'0a' * 8}"):
        assert not saved_files.is_begun(name, whole)
