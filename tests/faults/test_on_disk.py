"""Jobs that lose all memory come back from disk, whenever their writers were stopped."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from closeranks.checkpoint.control.sigterm_handler import SIGTERM_HANDLER
from closeranks.checkpoint.disk import saved_files
from closeranks.checkpoint.memory import slot_file
from tests.checkpoint.filed import save
from tests.faults.on_disk import POINTS
from tests.faults.remember import die_at

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = ("-m", "tests.faults.on_disk")


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of this test alone, whatever the command; nothing of it is left in memory."""
    made = f"on-disk-{secrets.token_hex(6)}"
    monkeypatch.setenv("CLOSERANKS_RUN", "test")
    yield made
    forget(made)


def kept(name: str) -> list[Path]:
    """Give all that is in memory."""
    return [path for path, _ in slot_file.found(f"{name}.test")]


def forget(name: str) -> None:
    """Lose all that is in memory."""
    for path in kept(name):
        path.unlink()


@pytest.mark.parametrize("point", POINTS)
def test_a_writer_is_killed(tmp_path: Path, point: str) -> None:
    """In a child: whatever is not complete never counts, and is removed in the end."""
    states = [{"own": np.arange(70_000.0) + rank, "alike": np.ones(9)} for rank in range(3)]
    save(tmp_path, states, [(0, 1), (2,)], generation=1)
    child = os.fork()
    if not child:
        die_at(*POINTS[point])
        save(tmp_path, states, [(0, 1), (2,)], generation=2, step=20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (found,) = saved_files.find_saves(tmp_path.parent, tmp_path.name).values()
    assert [(one.step, one.objection() is None) for one in found if one.step == 10] == [(10, True)]
    if point == "named":
        assert [one.step for one in found] == [20, 10]
        assert "1 complete files of 2" in str(found[0].objection())
    else:
        assert [one.step for one in found] == [10]
        assert len(list(tmp_path.rglob(".node-*"))) == 1
    saved_files.prune(tmp_path, (1 << 33, 0), {found[-1].folder})
    assert [one.name for one in tmp_path.iterdir()] == [found[-1].folder]


@pytest.mark.parametrize("point", POINTS)
def test_a_job_is_killed_while_it_writes(
    mpirun: Run, name: str, tmp_path: Path, point: str
) -> None:
    cut = mpirun(4, *PROGRAM, name, str(tmp_path), "save", point, "0")
    assert cut.returncode != 0, cut.stdout
    assert "AttributeError" not in cut.stdout, "the point is called otherwise now"
    assert "saved" not in cut.stdout
    forget(name)
    done = mpirun(4, *PROGRAM, name, str(tmp_path), "restore")
    assert done.returncode == 0, done.stdout
    # Those that are left are told to end, and write what they have of step 3.
    steps = (3,) if point == "named" else (2, 3)
    said = [f"restored {step}, skipped 0, newest {step + 1}" for step in steps]
    assert any(text in done.stdout for text in said), done.stdout
    if "restored 3" in done.stdout:  # by whom what was left has been removed
        assert not list(tmp_path.rglob(".*"))


def test_a_job_that_is_told_to_end_comes_back_on_other_numbers_of_ranks(
    mpirun: Run, name: str, tmp_path: Path
) -> None:
    cut = mpirun(4, *PROGRAM, name, str(tmp_path), "stuck")
    assert cut.returncode != 0, cut.stdout
    assert cut.stdout.count("saved 2") == 4, cut.stdout
    assert kept(name)
    files = list(tmp_path.rglob("*.h5"))
    assert [file.parent.name[-6:] for file in files] == ["step-2"]
    (of,) = (file.parents[1] for file in files)
    read = {file: file.read_bytes() for file in files}
    for ranks in (3, 6):
        forget(name)
        for file in of.rglob("*.h5"):
            file.unlink()
        for file, data in read.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)
        done = mpirun(ranks, *PROGRAM, name, str(tmp_path), "restore")
        assert done.returncode == 0, done.stdout
        assert "restored 2, skipped 0, newest 3" in done.stdout


SIGNALLED = """
import os, signal, sys, time, threading
from closeranks.checkpoint.control.sigterm_handler import SIGTERM_HANDLER
{before}
def task():
    print("task", threading.current_thread() is threading.main_thread(), flush=True)
SIGTERM_HANDLER.add(task)
{after}
os.kill(os.getpid(), signal.SIGTERM)
end = time.monotonic() + 5
while time.monotonic() < end and not globals().get("ended"):
    time.sleep(0.01)
print("went on", flush=True)
"""
HANDLER = """
def handler(number, frame):
    global ended
    print("handler", number, flush=True)
    ended = True
signal.signal(signal.SIGTERM, handler)
"""
FORK = """
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(0)
print("child", os.waitpid(child, 0)[1], flush=True)
time.sleep(0.1)
ended = True
os.kill = lambda *_: None
"""


@pytest.mark.parametrize(("before", "after", "said", "code"), [
    ("", "", ["task False"], -signal.SIGTERM),
    (HANDLER, "", ["task False", "handler 15", "went on"], 0),
    ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "ended = not time.sleep(0)",
     ["task False", "went on"], 0),
    (HANDLER, "SIGTERM_HANDLER.remove(task)", ["handler 15", "went on"], 0),
    ("", "signal.set_wakeup_fd(-1)", ["task False"], -signal.SIGTERM),
    ("", FORK, ["child 15", "went on"], 0),
])  # fmt: skip
def test_who_is_told_to_end(before: str, after: str, said: list[str], code: int) -> None:
    program = SIGNALLED.format(before=before, after=after)
    if "SIG_IGN" in before:
        program = program.replace('not globals().get("ended")', "time.monotonic() < end - 4.5")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout.split("\n")[:-1], done.returncode) == (said, code), done.stderr
    assert time.monotonic() - began < 5


def test_other_threads_have_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=SIGTERM_HANDLER.add, args=(print,))
    thread.start()
    thread.join()
    assert SIGTERM_HANDLER.tasks == []
    assert signal.getsignal(signal.SIGTERM) == before
