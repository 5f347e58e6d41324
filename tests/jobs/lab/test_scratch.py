"""Which parts of /tmp show through into the nodes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import closeranks
from closeranks.jobs.lab import scratch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as the machine's /tmp."""
    monkeypatch.setattr(scratch, "TMP", tmp_path)
    monkeypatch.chdir(tempfile.gettempdir())
    return tmp_path


def test_folders_of_named_files_are_shared_once(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    words = ["python", str(folder / "a" / "b" / "prog.py"), f"--json={folder / 'a' / 'x.json'}"]
    assert scratch.shared_folders(words) == [str(folder / "a")]


def test_the_working_folder_is_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    assert scratch.shared_folders(["x"]) == [str(folder / "work")]


def test_a_checkout_is_shared_with_the_rooms_it_links_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("checkout/closeranks", "checkout/comms", "rooms/jobs", "other"):
        (folder / name).mkdir(parents=True)
    package = folder / "checkout" / "closeranks"
    (package / "comms").symlink_to("../comms")
    (package / "jobs").symlink_to("../../rooms/jobs")
    monkeypatch.setattr(closeranks, "__file__", str(package / "__init__.py"))
    places = [folder / "checkout", folder / "rooms" / "jobs"]
    assert scratch.shared_folders(["x"]) == [str(place) for place in places]


def test_a_package_directly_in_tmp_is_shared_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closeranks").mkdir()
    monkeypatch.setattr(closeranks, "__file__", str(folder / "closeranks" / "__init__.py"))
    assert scratch.shared_folders(["x"]) == [str(folder / "closeranks")]


def test_files_directly_in_tmp_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ["prog.py", f"--json={folder / 'x.json'}", "/elsewhere/y", "-v"]
    assert {"prog.py", "x.json"} <= set(scratch.loose_files(words))
    assert "y" not in scratch.loose_files(words)
    assert scratch.shared_folders(words) == []


@pytest.mark.parametrize(
    ("inside", "outside", "tmp", "lab"),
    [
        (False, False, "old", None),
        (True, False, "inside", None),
        (False, True, "outside", None),  # an editor, or another lab
        (True, True, "outside", "inside"),
    ],
)
def test_what_a_node_has_written_comes_back_over_what_nobody_else_has(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    inside: bool,
    outside: bool,
    tmp: str,
    lab: str | None,
) -> None:
    root = tmp_path_factory.mktemp("node")
    here, there = folder / "x.log", Path(f"{root}{folder}") / "x.log"
    there.parent.mkdir(parents=True)
    for path in (here, there):
        path.write_text("old")
        os.utime(path, ns=(1, 1))
    handle = os.open(folder, os.O_RDONLY)
    before = scratch.times(["x.log", "none"], handle)
    for is_written, path, text in ((inside, there, "inside"), (outside, here, "outside")):
        if is_written:
            path.write_text(text)
    beside = scratch.hand_back(before, [str(root)], handle)
    os.close(handle)
    assert here.read_text() == tmp
    assert beside == (["x.log"] if lab else [])
    kept = folder / "x.log.lab"
    assert (kept.read_text() if kept.exists() else None) == lab
