"""A new process ends with its starter until it has joined, and not after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from closeranks.comms import usher

NEW = """
import os, sys, time
from closeranks.comms import usher
ticket = os.environ["CLOSERANKS_JOINS"]
if sys.argv[1] == "joins":
    assert usher.joined(ticket) == 4
print("here", flush=True)
print(sys.stdin.readline() == "go on\\n", flush=True)
"""
LIMIT_S = 20


@pytest.fixture
def starter() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", str(3 * LIMIT_S)])
    yield process
    process.kill()
    process.wait()


def started(starter: int, *words: str) -> subprocess.Popen[str]:
    """Run the new process; it has got as far as it says."""
    command = usher.command([sys.executable, "-c", NEW, *words])
    command[4] = str(starter)
    environment = {**os.environ, "CLOSERANKS_JOINS": "4"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_starter_is_this_process() -> None:
    assert usher.command(["a", "b"])[4:] == [str(os.getpid()), "a", "b"]


def test_it_ends_with_its_starter(starter: subprocess.Popen[bytes]) -> None:
    with started(starter.pid, "waits") as new:
        assert heard(new) == "here\n"
        starter.kill()
        assert new.wait(LIMIT_S) == -signal.SIGKILL
        assert heard(new) == "", "nobody else holds its output"


def test_not_once_it_has_joined(starter: subprocess.Popen[bytes]) -> None:
    with started(starter.pid, "joins") as new:
        assert heard(new) == "here\n"
        starter.kill()
        starter.wait()
        with pytest.raises(subprocess.TimeoutExpired):
            new.wait(0.3)
        assert new.communicate("go on\n", LIMIT_S)[0] == "True\n", "it has no handle but its own"
        assert new.returncode == 0


def test_nobody_starts_for_a_dead_one(starter: subprocess.Popen[bytes]) -> None:
    starter.kill()
    starter.wait()
    with started(starter.pid, "joins") as new:
        assert new.wait(LIMIT_S) == -signal.SIGKILL


def test_without_an_usher_there_is_only_the_word() -> None:
    assert usher.joined("12") == 12
