"""Which saves are whole on disk, and whose folders are used."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.disk.hdf5_writer import About
from closeranks.errors import CheckpointError
from tests.checkpoint.filed import about_of, extents, put, save

STATES: list[dict[str, Any]] = [
    {"own": np.full(9, rank), "alike": np.arange(50.0)} for rank in range(4)
]
NODES = [(0, 1), (2, 3)]


def listed(folder: Path) -> list[tuple[int, str | None]]:
    """Give steps and what is wrong with them."""
    found = saved_files.find_saves(folder.parent, folder.name).get(folder.name, [])
    return [(one.step, (why := one.objection()) and why.text) for one in found]


def test_a_save_is_whole_when_all_its_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    for generation in (1, 2, 3):
        paths = save(folder, STATES, NODES, generation=generation, step=-generation)
    assert listed(folder) == [(-3, None), (-2, None), (-1, None)]
    (lot,) = saved_files.find_saves(tmp_path, folder.name).values()
    assert lot[0].nbytes == sum(path.stat().st_size for path in paths)
    paths[1].unlink()
    assert listed(folder)[0] == (-3, "on disk: 1 complete files of 2")
    paths[1].write_bytes(b"none")
    found = str(listed(folder)[0][1])
    assert "1 complete files of 2" in found
    assert str(paths[1]) in found
    paths[0].write_bytes(b"none")
    assert str(paths[0]) in str(listed(folder)[0][1])
    assert listed(folder)[1:] == [(-2, None), (-1, None)]
    assert list(saved_files.find_saves(tmp_path)) == [folder.name]
    assert saved_files.names(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("words", "why"), [
    ({"run": "f" * 16}, "files of several saves"), ({"world": 5}, "files of several saves"),
    ({"files": 3}, "files of several saves"), ({"members": (2, 3)}, "not the files of 4 ranks"),
])  # fmt: skip
def test_files_that_do_not_belong_together(tmp_path: Path, words: dict[str, Any], why: str) -> None:
    every = extents(STATES, lambda path: path == "alike")
    for node, ranks in enumerate(NODES):
        own = {rank: every[rank] for rank in ranks}
        about = about_of(own, 4, node=node, files=2)
        if node and "members" in words:  # slices of two ranks, not of four
            own = {rank: extents(STATES[2:], lambda path: path == "alike")[rank - 2]
                   for rank in ranks}  # fmt: skip
            sizes = tuple((rank, len(one.text), one.body) for rank, (one, _) in own.items())
            about = replace(about, ranks=sizes)
        put(tmp_path, own, replace(about, **words) if node else about)
    assert listed(tmp_path) == [(10, f"on disk: {why}")]


def test_a_file_in_the_folder_of_another_save(tmp_path: Path) -> None:
    (one, two) = save(tmp_path, STATES, NODES, generation=1)
    (newer, _) = save(tmp_path, STATES, NODES, generation=2)
    shutil.copy(newer, one)
    assert listed(tmp_path)[1] == (10, "on disk: files of several saves")
    assert two.exists()


def test_what_is_old_goes(tmp_path: Path) -> None:
    for generation in range(1, 6):
        save(tmp_path, STATES, NODES, generation=generation, step=generation)
    (lot,) = saved_files.find_saves(tmp_path.parent, tmp_path.name).values()
    (tmp_path / "mine.txt").touch()
    (tmp_path / lot[-2].folder / "mine.txt").touch()
    saved_files.prune(tmp_path, (1 << 32, 3), {lot[-1].folder}, node=1)
    assert str(listed(tmp_path)[3][1]) == "on disk: 1 complete files of 2"
    saved_files.prune(tmp_path, (1 << 32, 3), {lot[-1].folder})
    assert listed(tmp_path) == [(5, None), (4, None), (3, None), (1, None)]
    assert (tmp_path / "mine.txt").exists()
    assert [path.name for path in (tmp_path / lot[-2].folder).iterdir()] == ["mine.txt"]


def test_words_of_a_file_are_checked() -> None:
    about = about_of({0: extents(STATES, lambda _: False)[0]}, 4)
    assert About.decode(about.encode()) == about
    for text in (b"", b"{}", b"[1]", b"null", b"[" * 100_000, about.encode()[:-1]):
        with pytest.raises(CheckpointError, match="no word about a file"):
            About.decode(text)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may write to."""
    place = Path(tempfile.mkdtemp(prefix="closeranks-public-"))
    place.chmod(0o1777)
    yield place
    shutil.rmtree(place)


def as_nobody(check: Callable[[], None]) -> None:
    """Do something in a child that is nobody."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes nobody")
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_nobody_has_folders_of_nobodys_own(public: Path) -> None:
    save(public / "warm", STATES, NODES)  # compiles in this process, and is root's
    (public / "link").symlink_to(public / "warm")
    (public / "shut").mkdir(mode=0o755)

    def check() -> None:
        save(public / "mine", STATES, NODES)
        assert listed(public / "mine") == [(10, None)]
        for name in ("warm", "link"):
            with pytest.raises(CheckpointError, match="not a folder of this user"):
                saved_files.names(public / name)
            with pytest.raises(CheckpointError, match=r"not a folder of this user|Permission"):
                save(public / name, STATES, NODES)
        with pytest.raises(CheckpointError, match="Permission denied"):
            save(public / "shut" / "new", STATES, NODES)
        (public / "mine").chmod(0)
        with pytest.raises(CheckpointError, match="Permission denied"):
            saved_files.names(public / "mine")

    as_nobody(check)
    with pytest.raises(CheckpointError, match="not a folder of this user"):
        saved_files.names(public / "mine")
