"""Compiled code finds a place where a user has no home, and none that strangers may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from closeranks.comms.jit import code_cache
from closeranks.errors import UsageError


def settled() -> Path | None:
    return code_cache.cache_folder.__wrapped__()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a home and a folder for temporary files."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir(mode=0o755)
    monkeypatch.delenv("CLOSERANKS_CODE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(code_cache, "gettempdir", lambda: str(tmp_path / "tmp"))
    return tmp_path


def test_it_is_in_the_users_caches(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled() == places / "home" / ".cache" / "closeranks"
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "caches"))
    assert settled() == places / "caches" / "closeranks"


def test_a_home_that_is_none_or_everybodys_is_left_alone(places: Path) -> None:
    temporary = places / "tmp" / f"closeranks-{os.getuid()}"
    (places / "home" / ".cache").touch()
    assert settled() == temporary
    (places / "home" / ".cache").unlink()
    (places / "home" / ".cache" / "closeranks").mkdir(parents=True)
    (places / "home" / ".cache" / "closeranks").chmod(0o777)
    assert settled() == temporary
    assert temporary.stat().st_mode & 0o077 == 0


def test_where_no_place_can_be_trusted_nothing_is_kept(places: Path) -> None:
    (places / "home" / ".cache").touch()
    (places / "tmp" / f"closeranks-{os.getuid()}").touch()
    assert settled() is None


def test_a_setting_names_it(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSERANKS_CODE", str(places / "own"))
    assert settled() == places / "own"


def test_one_that_others_may_write_is_refused(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_CODE", str(places / "tmp"))
    (places / "tmp").chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        settled()
