"""The warden: who is stopped is ended, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from closeranks.comms import warden

SILENCE_S = 0.2


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that do nothing, ended at the end."""
    words = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    made = [subprocess.Popen(words), subprocess.Popen(words)]
    yield made
    for process in made:
        process.kill()
        process.wait()


def _left(watcher: int) -> int:
    """Wait until a warden has left; gives its status."""
    assert warden.__file__ in psutil.Process(watcher).cmdline()
    return os.waitpid(watcher, 0)[1]


def test_who_is_stopped_is_ended_and_the_warden_leaves_with_the_last(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    first, second = sleepers
    watcher = warden.start([first.pid, second.pid], SILENCE_S)
    os.kill(first.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    assert first.wait(5) == -signal.SIGKILL
    assert SILENCE_S * 0.8 <= time.monotonic() - stopped < SILENCE_S + 2
    assert second.poll() is None
    second.kill()
    second.wait()
    assert _left(watcher) == 0


def test_who_goes_on_in_time_lives(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, second = sleepers
    watcher = warden.start([first.pid], 1.0)
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(first.pid, signal.SIGCONT)
    time.sleep(1.2)
    assert first.poll() is None
    first.kill()
    first.wait()
    assert _left(watcher) == 0
    assert second.poll() is None


def test_looks_are_counted_one_after_the_other() -> None:
    ward = warden.Ward(3)
    seen = "TTSTTTTT"
    assert [ward.is_over(state, "S") for state in seen] == [False] * 5 + [True, False, False]


def test_a_job_that_is_suspended_as_a_whole_is_left_alone() -> None:
    ward = warden.Ward(2)
    assert not any(ward.is_over("T", "T") for _ in range(5))
    assert not any(ward.is_over("t", "S") for _ in range(5)), "a debugger holds it"


def test_processes_that_are_gone_are_no_trouble() -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    warden.watch([gone.pid], SILENCE_S)
