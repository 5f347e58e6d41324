"""A lock on checkpoints lives as long as the processes that hold it, and no longer."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from closeranks.checkpoint.memory import slot_locks
from closeranks.comms.shm.shared_folder import folder
from closeranks.errors import Unavailable

#: Holds a lock, and says so; with "fork" a child of it lives on, and says its number.
HOLDER = """
import os, sys, time
from pathlib import Path
from closeranks.checkpoint.memory import slot_locks as locks
while locks.take(sys.argv[1], locks.Owner.here("job"), Path(sys.argv[2])):
    time.sleep(0.01)
child = os.fork() if sys.argv[3] == "fork" else 1
if not child:
    time.sleep(60)
print(child, flush=True)
sys.stdin.read()
locks.release(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A file system in memory, and nothing in it but the user's folder."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        yield Path(made)


def start(root: Path, how: str) -> subprocess.Popen[str]:
    """Start a process that holds a lock until its input ends."""
    words = [sys.executable, "-c", HOLDER, "name.7", str(root), how]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def holder(root: Path, how: str = "alone") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Have a process that holds a lock; gives the number of its child, too."""
    with start(root, how) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def files(root: Path) -> list[str]:
    """Give what is in the folder."""
    return [path.name for path in folder(root).iterdir()]


def may_remove(root: Path) -> bool:
    """Try to keep others out."""
    with slot_locks.removing(folder(root), "name.7") as may:
        return may


def test_it_goes_with_the_process_however_that_ends(root: Path) -> None:
    with holder(root) as (second, _):
        with holder(root) as (first, _):
            assert slot_locks.is_held(folder(root), "name.7")
            assert not slot_locks.is_held(folder(root), "name")
            assert not may_remove(root)
            first.send_signal(signal.SIGKILL)
            first.wait()
        assert slot_locks.is_held(folder(root), "name.7")
        second.send_signal(signal.SIGKILL)
        second.wait()
    assert not slot_locks.is_held(folder(root), "name.7")
    assert may_remove(root)
    assert files(root) == []


def test_a_child_does_not_hold_it(root: Path) -> None:
    with holder(root, "fork") as (process, child):
        try:
            assert slot_locks.is_held(folder(root), "name.7")
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(child, 0)
            assert not slot_locks.is_held(folder(root), "name.7")
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_last_one_takes_the_file_away(root: Path) -> None:
    assert not slot_locks.take("name.7", slot_locks.Owner.here("job"), root)
    assert not slot_locks.take("name.7", slot_locks.Owner.here("job"), root)
    with holder(root) as (other, _):
        assert slot_locks.is_held(folder(root), "name.7")
        slot_locks.release("name.7", root)
        slot_locks.release("name.7", root)
        assert files(root) == ["lock-name.7"]
        assert slot_locks.is_held(folder(root), "name.7")
        other.communicate("")
    assert files(root) == []


def test_a_look_at_ones_own_lock_does_not_break_it(root: Path) -> None:
    assert not slot_locks.take("name.7", slot_locks.Owner.here("job"), root)
    assert slot_locks.is_held(folder(root), "name.7")
    assert not may_remove(root)
    seen = "import sys; from pathlib import Path\n"
    seen += "from closeranks.checkpoint.memory import slot_locks as locks\n"
    seen += "sys.exit(not locks.is_held(Path(sys.argv[1]), 'name.7'))"
    subprocess.run([sys.executable, "-c", seen, str(folder(root))], check=True)
    slot_locks.release("name.7", root)


def test_another_job_is_told_who_has_it_and_takes_it_from_the_dead(root: Path) -> None:
    other = slot_locks.Owner.here("other")
    with holder(root) as (first, _), holder(root) as (second, _):
        told = slot_locks.take("name.7", other, root)
        assert f"host {socket.gethostname()}, pid " in told
        assert int(told.split("pid ")[1].split(",")[0]) in (first.pid, second.pid)
        assert re.search(r"started 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", told)
        assert slot_locks.owner(folder(root), "name.7") == told
        for process in (first, second):
            assert not slot_locks.holds("name.7", root)
            assert slot_locks.take("name.7", other, root)
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert slot_locks.owner(folder(root), "name.7") == ""
    assert slot_locks.take("name.7", other, root) == ""
    assert slot_locks.owner(folder(root), "name.7") == str(other)
    assert slot_locks.take("name.7", slot_locks.Owner.here("third"), root) == str(other)
    with start(root, "alone") as late:  # which waits
        assert late.stdout is not None
        assert select.select([late.stdout], [], [], 0.5)[0] == []
        slot_locks.release("name.7", root)
        assert late.stdout.readline() == "1\n"
        late.communicate("")
    assert files(root) == []


def test_of_jobs_that_take_it_at_once_one_has_it(root: Path) -> None:
    taker = HOLDER.replace('here("job")', "here(sys.argv[4])")
    taker = taker.replace("while locks", "if locks").replace(
        "    time.sleep(0.01)", "    sys.exit()"
    )
    for _ in range(5):
        words = [sys.executable, "-c", taker, "name.7", str(root), "alone"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        jobs = [subprocess.Popen([*words, job], **pipes) for job in "abc"]
        said = [job.stdout.readline() for job in jobs if job.stdout]
        assert said.count("1\n") <= 1, said
        for job in jobs:
            job.communicate("")
        assert files(root) == []


def test_who_opens_waits_for_who_removes(root: Path) -> None:
    with ExitStack() as stack:
        assert stack.enter_context(slot_locks.removing(folder(root), "name.7"))
        process = start(root, "alone")
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 0.7)[0] == []
        assert process.poll() is None
    with process:
        assert process.stdout.readline() == "1\n"
        assert slot_locks.is_held(folder(root), "name.7")
        process.communicate("")
    assert files(root) == []


def test_what_killed_processes_have_left_is_tidied(root: Path) -> None:
    left = folder(root) / "lock-other.8"
    left.touch(0o600)
    with holder(root):
        slot_locks.tidy(folder(root))
        assert files(root) == ["lock-name.7"]
        assert slot_locks.is_held(folder(root), "name.7")
    slot_locks.tidy(folder(root))
    assert files(root) == []


def test_files_of_others_that_are_called_like_locks_stay(root: Path) -> None:
    place = folder(root)
    mine = [place / "lock-smith.txt", place / "lock-up"]
    for path in mine:
        path.write_text("all about them")
    (place / "lock-~").touch()
    slot_locks.tidy(place)
    with slot_locks.removing(place, "up"):
        pass
    assert [path.read_text() for path in mine] == ["all about them"] * 2
    assert (place / "lock-~").exists()


def test_a_file_of_that_name_that_is_none(root: Path) -> None:
    (folder(root) / "lock-name.7").symlink_to("/etc/passwd")
    with pytest.raises(Unavailable, match=r"lock-name\.7"):
        assert not slot_locks.take("name.7", slot_locks.Owner.here("job"), root)
    assert slot_locks.is_held(folder(root), "name.7")
