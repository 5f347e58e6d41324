"""Node memory: ours alone, paid for before it is touched, gone when we are."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from closeranks.comms.shm import shared_file
from closeranks.comms.shm.shared_file import SharedFile, tidy
from closeranks.comms.shm.shared_folder import Untrusted, folder
from closeranks.errors import Unavailable, UsageError


def files(root: Path) -> list[Path]:
    return [path for folder in root.iterdir() for path in folder.iterdir()]


def test_it_starts_as_zeros_and_is_shared(tmp_path: Path) -> None:
    made = SharedFile.create(100, root=tmp_path)
    other = SharedFile.attach(made.path, 100)
    assert made.nbytes == other.nbytes == 100
    assert not other.array.any()
    made.array[3] = 7
    assert other.array[3] == 7
    made.close()
    other.close()
    assert files(tmp_path) == []


def test_folder_and_file_are_for_this_user_alone(tmp_path: Path) -> None:
    made = SharedFile.create(8, root=tmp_path)
    assert made.path.parent.name == f"closeranks-{os.getuid()}"
    assert stat.S_IMODE(made.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    made.close()


def test_the_bytes_outlive_the_name(tmp_path: Path) -> None:
    made = SharedFile.create(8, root=tmp_path)
    other = SharedFile.attach(made.path, 8)
    made.unlink()
    made.unlink()
    assert files(tmp_path) == []
    made.array[0] = 1
    assert other.array[0] == 1


def test_an_array_outlives_the_file(tmp_path: Path) -> None:
    made = SharedFile.create(8, root=tmp_path)
    array = made.array
    made.close()
    made.close()
    array[0] = 5
    assert array[0] == 5
    with pytest.raises(UsageError, match="closed"):
        _ = made.array


@pytest.mark.parametrize("nbytes", [0, -1])
def test_nothing_is_no_size(nbytes: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        SharedFile.create(nbytes, root=tmp_path)


def test_full_memory_is_an_error_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Unavailable, match=r"12345 bytes wanted, \d+ free"):
        SharedFile.create(12345, root=tmp_path)
    assert files(tmp_path) == []


def test_more_than_there_is_never_kills_us() -> None:
    room = os.statvfs("/dev/shm")
    with pytest.raises(Unavailable, match="free"):
        SharedFile.create(2 * room.f_blocks * room.f_frsize + 4096)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / f"closeranks-{os.getuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(Unavailable, match="0700"):
        SharedFile.create(8, root=tmp_path)


def test_a_link_is_refused_as_folder_and_as_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"closeranks-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="no link"):
        SharedFile.create(8, root=tmp_path)
    (tmp_path / "real").write_bytes(bytes(8))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Unavailable, match="link"):
        SharedFile.attach(tmp_path / "link", 8)


@pytest.fixture
def of_nobody(tmp_path: Path) -> Iterator[Path]:
    """A folder with our name that another user has made."""
    if os.getuid():
        pytest.skip("only the superuser gives files away")
    place = tmp_path / "closeranks-0"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, -1)
    yield place
    os.chown(place, 0, -1, follow_symlinks=False)


def test_a_folder_of_another_user_is_named_with_its_owner(of_nobody: Path, tmp_path: Path) -> None:
    (of_nobody / f"1-{'a' * 16}").touch()
    for use in (folder, tidy, lambda root: SharedFile.create(8, root=root)):
        with pytest.raises(Untrusted) as caught:
            use(tmp_path)
        said = str(caught.value)
        assert f"{of_nobody}: a folder (mode 0700) of user nobody (65534)" in said
        assert said.endswith("ask that user or an administrator to remove it")
        assert "\n" not in said
        assert str(pickle.loads(pickle.dumps(caught.value))) == said
    assert len(list(of_nobody.iterdir())) == 1
    assert of_nobody.stat().st_uid == 65534


@pytest.mark.parametrize(
    "make",
    [lambda path: path.touch(0o600), lambda path: path.symlink_to("/nowhere"),
     lambda path: os.mkfifo(path, 0o600)],
)  # fmt: skip
def test_what_is_no_folder_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / f"closeranks-{os.getuid()}")
    with pytest.raises(Untrusted, match=r"no folder of user .*; remove it"):
        folder(tmp_path)


def test_a_user_without_a_name_has_a_number(of_nobody: Path, tmp_path: Path) -> None:
    os.chown(of_nobody, 54321, -1)
    with pytest.raises(Untrusted, match="of user 54321, not"):
        folder(tmp_path)


def test_another_size_is_refused(tmp_path: Path) -> None:
    made = SharedFile.create(8, root=tmp_path)
    with pytest.raises(Unavailable, match="8 bytes, not 16"):
        SharedFile.attach(made.path, 16)
    made.close()


def test_a_missing_file_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="/dev/shm"):
        SharedFile.attach(tmp_path / "nothing", 8)


def test_a_forked_child_takes_no_name_away(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from closeranks.comms.shm.shared_file import SharedFile\n"
        "made = SharedFile.create(8, root=Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    made.close()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert made.path.exists()\n"
        "made.close()\n"
        "assert not made.path.exists()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)


def test_a_large_file_has_all_its_pages(tmp_path: Path) -> None:
    made = SharedFile.create(1 << 20, root=tmp_path)
    assert made.path.stat().st_blocks * 512 >= 1 << 20
    made.array.view(np.int64)[:] = 3
    assert int(made.array.view(np.int64).sum()) == 3 << 17
    made.close()


def test_what_the_dead_have_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path)
    made, left, other = (place / name for name in (f"1-{'a' * 16}", f"2-{'b' * 16}", "compiling"))
    for path in (made, left, other):
        path.touch()
    with made.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        tidy(tmp_path)
        assert left.exists(), "it may be so young that it has no lock yet"
        monkeypatch.setattr(shared_file, "_UNLOCKED_S", -1.0)
        tidy(tmp_path)
        assert sorted(place.iterdir()) == [made, other]
    tidy(tmp_path)
    assert list(place.iterdir()) == [other]


def test_a_file_has_no_name_before_its_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, before = os.pwrite, list[list[Path]]()

    def seen(handle: int, front: bytes, at: int) -> int:
        before.append(files(tmp_path))
        return write(handle, front, at)

    monkeypatch.setattr(os, "pwrite", seen)
    for front in (b"old", b"new"):
        made = SharedFile.create(9000, root=tmp_path, name="x", front=front)
        assert made.path.read_bytes() == made.array.tobytes() == front + bytes(9000 - 3)
        assert files(tmp_path) == [made.path]
        with made.path.open() as handle:  # who has it mapped does not hold its lock
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.close()
    assert [path.name == "x" for path in before[0]] == [False]
    assert len(before[1]) == 2  # the old one is there until the new one takes its place
