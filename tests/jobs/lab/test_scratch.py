"""Which parts of /tmp show through into the nodes."""

from __future__ import annotations

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
