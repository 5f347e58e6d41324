"""A new process ends with its starter until it has joined, and not after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from closeranks.comms.liveness import spawn_guard

NEW = """
import os, signal, sys, time
from closeranks.comms.liveness import spawn_guard
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ticket = os.environ["CLOSERANKS_JOINS"]
if "forks" in sys.argv and not os.fork():
    time.sleep(5)
    os._exit(0)
if "joins" in sys.argv:
    assert spawn_guard.joined(ticket) == 4
print("here", flush=True)
signal.sigwait([signal.SIGUSR1])
print(os.path.samestat(os.fstat(0), os.stat(os.devnull)), flush=True)
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
    command = spawn_guard.command([sys.executable, "-c", NEW, *words])
    command[4] = f"{starter}@{command[4].partition('@')[2]}"
    environment = {**os.environ, "CLOSERANKS_JOINS": "4"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_starter_is_this_process() -> None:
    starter, *words = spawn_guard.command(["a", "b"])[4:]
    assert starter.partition("@")[0] == str(os.getpid())
    assert words == ["a", "b"]


def test_it_ends_with_its_starter(starter: subprocess.Popen[bytes]) -> None:
    with started(starter.pid, "waits") as new:
        assert heard(new) == "here\n"
        starter.kill()
        assert new.wait(LIMIT_S) == -signal.SIGKILL
        assert heard(new) == "", "nobody else holds its output"


@pytest.mark.parametrize("more", [[], ["forks"]], ids=["alone", "forked"])
def test_not_once_it_has_joined(starter: subprocess.Popen[bytes], more: list[str]) -> None:
    with started(starter.pid, "joins", *more) as new:
        assert heard(new) == "here\n"
        starter.kill()
        starter.wait()
        with pytest.raises(subprocess.TimeoutExpired):
            new.wait(0.3)
        new.send_signal(signal.SIGUSR1)
        said = new.communicate(timeout=LIMIT_S)[0]  # to its end: it has no handle but its own
        assert said == "True\n", "its input is empty"
        assert new.returncode == 0


def test_nobody_starts_for_a_dead_one(starter: subprocess.Popen[bytes]) -> None:
    starter.kill()
    starter.wait()
    with started(starter.pid, "joins") as new:
        assert new.wait(LIMIT_S) == -signal.SIGKILL


def test_a_stranger_of_another_numbering_is_no_starter() -> None:
    command = spawn_guard.command([sys.executable, "-c", "print('runs')"])
    command[4] = "1@pid:[1]"
    environment = {**os.environ, "CLOSERANKS_JOINS": "4"}
    done = subprocess.run(
        command, env=environment, capture_output=True, check=True, timeout=LIMIT_S
    )
    assert done.stdout == b"runs\n"


def test_what_is_no_pipe_any_more_is_left_alone() -> None:
    with open(os.devnull, "wb") as other:  # noqa: PTH123 - a number is needed
        assert spawn_guard.joined(f"4:{other.fileno()}") == 4
        other.write(b"still open")


def test_without_an_usher_there_is_only_the_word() -> None:
    assert spawn_guard.joined("12") == 12
