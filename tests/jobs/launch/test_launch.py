"""Launches: what one leaves behind must not meet the next."""

from __future__ import annotations

import errno
import fcntl
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from closeranks.jobs.launch import openmpi_mpirun
from closeranks.jobs.launch.openmpi_mpirun import session
from tests.conftest import Launch

PROGRAM = "import os; print('files in', os.environ.get('PMIX_SERVER_TMPDIR', ''))"


def test_each_launch_has_files_of_its_own(launch: Launch, mpi_library: str) -> None:
    """Files under a process id alone stop a later launch that gets the same id."""
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's launcher writes none")
    command = [sys.executable, "-m", "closeranks", "run", "-n", "1", "--"]
    folders = set()
    for _ in range(2):
        said = launch([*command, sys.executable, "-c", PROGRAM]).stdout
        folders |= set(re.findall(r"^files in (.*)$", said, re.MULTILINE))
    parents = {Path(folder).parent for folder in folders}
    assert len(parents) == 2
    assert all("closeranks-mpirun-" in str(one) for one in parents)
    assert not any(one.exists() for one in parents)


#: Stands for a launcher, and says which signal has ended it.
LAUNCHER = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("here", flush=True)
told = signal.sigtimedwait([signal.SIGTERM], 20)
print(told.si_signo if told else 0, flush=True)
"""
#: Starts it as ``closeranks run`` does.
STARTER = f"""
import sys
from closeranks.jobs.launch.job_description import Command
from closeranks.jobs.launch.launch import execute
execute(Command((sys.executable, "-c", {LAUNCHER!r}), {{}}))
"""


def test_the_launcher_ends_with_who_has_started_it() -> None:
    words = [sys.executable, "-c", STARTER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"here\n"
        job.kill()
        assert int(job.stdout.readline()) == signal.SIGTERM


#: Has a folder for a launch until it is killed.
OWNER = """
import time
from closeranks.jobs.launch.openmpi_mpirun import session
with session() as own:
    print(*own.values(), flush=True)
    time.sleep(60)
"""


def test_the_next_launch_removes_what_a_killed_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "closeranks-mpirun-of-another-machine"
    other.mkdir()
    (other / "owner-of-another-machine").touch()
    words = [sys.executable, "-c", OWNER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with session():
            assert left.is_dir(), "its owner is alive"
        owner.kill()
    assert left.is_dir()
    with session() as own:
        assert {str(path) for path in tmp_path.iterdir()} == {*own.values(), str(other)}
    assert list(tmp_path.iterdir()) == [other]


def test_what_a_link_names_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = tmp_path / "kept"
    with session() as own:
        (folder,) = map(Path, own.values())
        shutil.copytree(folder, kept)  # as one whose owner was killed
    (tmp_path / "closeranks-mpirun-link").symlink_to(kept)
    with session():
        assert len(list(kept.iterdir())) == 1


@pytest.mark.parametrize("refused", ["flock", "boot"])
def test_jobs_start_where_locks_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def no_lock(_file: object, _how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if refused == "flock":
        monkeypatch.setattr(fcntl, "flock", no_lock)
    else:
        monkeypatch.setattr(openmpi_mpirun, "_BOOT", tmp_path / "hidden")
    with session() as own, session() as next_one:
        assert {str(path) for path in tmp_path.iterdir()} == {*own.values(), *next_one.values()}
    assert not list(tmp_path.iterdir())
