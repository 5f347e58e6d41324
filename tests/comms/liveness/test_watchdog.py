"""The watchdog: who is stopped is ended, and nobody else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest

from closeranks.comms.liveness import watchdog
from closeranks.jobs.launch.exit_reports import open_poll

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


def _wardens(pid: int) -> list[psutil.Process]:
    """Who watches a process."""
    words = [(one, one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    return [one for one, line in words if watchdog.__file__ in line and str(pid) in line]


def _left(watchers: list[psutil.Process]) -> None:
    """Wait until watchdogs have left."""
    _, alive = psutil.wait_procs(watchers, timeout=5)
    assert not alive


def test_who_is_stopped_is_ended_and_the_warden_leaves_with_the_last(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    first, second = sleepers
    watchdog.start([first.pid, second.pid], SILENCE_S)
    watcher = _wardens(first.pid)
    assert len(watcher) == 1
    assert watcher[0].ppid() != os.getpid(), "nobody waits for it"
    os.kill(first.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    assert first.wait(5) == -signal.SIGKILL
    assert SILENCE_S * 0.8 <= time.monotonic() - stopped < SILENCE_S + 2
    assert second.poll() is None
    second.kill()
    second.wait()
    _left(watcher)


def test_who_goes_on_in_time_lives(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, second = sleepers
    watchdog.start([first.pid], 1.0)
    watcher = _wardens(first.pid)
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(first.pid, signal.SIGCONT)
    time.sleep(1.2)
    assert first.poll() is None
    first.kill()
    first.wait()
    _left(watcher)
    assert second.poll() is None


def test_who_is_stopped_most_of_the_time_lives(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, _ = sleepers
    watchdog.start([first.pid], SILENCE_S)
    end_s = time.monotonic() + 5 * SILENCE_S
    while time.monotonic() < end_s:
        first.send_signal(signal.SIGSTOP)
        time.sleep(SILENCE_S / 4)
        first.send_signal(signal.SIGCONT)
    assert first.poll() is None


def test_none_is_ended_before_its_time(sleepers: list[subprocess.Popen[bytes]]) -> None:
    watchdog.start([one.pid for one in sleepers], 2 * SILENCE_S)
    time.sleep(SILENCE_S)
    stopped = []
    for one in sleepers:  # at two moments between looks
        stopped.append(time.monotonic())
        one.send_signal(signal.SIGSTOP)
        time.sleep(SILENCE_S / 5)
    for one, since in zip(sleepers, stopped, strict=True):
        assert one.wait() == -signal.SIGKILL
        assert time.monotonic() - since >= 2 * SILENCE_S


def test_a_warden_holds_nothing_that_a_rank_has_open(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.set_inheritable(True)  # as the library's are
        watchdog.start([sleepers[0].pid], 1.0)
        (watcher,) = _wardens(sleepers[0].pid)
        held = {int(path.name) for path in Path(f"/proc/{watcher.pid}/fd").iterdir()}
        assert held == {0, 1, 2}


def test_one_warden_is_enough(sleepers: list[subprocess.Popen[bytes]]) -> None:
    first, second = (one.pid for one in sleepers)
    for pids, silence_s in (([first], 1.0), ([first], 2.0), ([first, second], 1.0)):
        watchdog.start(pids, silence_s)
    assert [len(_wardens(pid)) for pid in (first, second)] == [1, 1]
    watchdog.start([first, second], 0.5)
    assert [len(_wardens(pid)) for pid in (first, second)] == [2, 2], "it is quicker"
    for one in sleepers:
        one.kill()
        one.wait()
    _left([*_wardens(first), *_wardens(second)])


def test_who_stops_while_the_launcher_does_not_answer_is_left_alone(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = sleepers
    with socket.create_server(("127.0.0.1", 0)) as launcher:
        place = f"127.0.0.1:{launcher.getsockname()[1]}:secret"
        monkeypatch.setenv("CLOSERANKS_VOTES", place)
        watchdog.start([first.pid], SILENCE_S)
        os.kill(first.pid, signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(2.5)
        with open_poll() as poll:
            awake = watchdog.WatchedLauncher(poll.environment)
            assert not any(awake.sleeps() for _ in range(3))
        launcher.settimeout(0.1)
        end_s = time.monotonic() + 5
        while first.poll() is None and time.monotonic() < end_s:  # it is back
            with suppress(TimeoutError, ConnectionError), launcher.accept()[0] as caller:
                assert caller.recv(100) == b"secret here\n"
                caller.sendall(b"heard\n")
    assert first.wait(5) == -signal.SIGKILL


def test_nobody_sleeps_who_is_not_there() -> None:
    for where in ("", "nonsense", "127.0.0.1:1:token", "127.0.0.1:port:token"):
        assert not watchdog.WatchedLauncher({"CLOSERANKS_VOTES": where}).sleeps()


def test_one_call_waits_for_a_launcher_that_sleeps() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}:secret"
        launcher = watchdog.WatchedLauncher({"CLOSERANKS_VOTES": place})
        assert all(launcher.sleeps() for _ in range(5))
        others = [watchdog.WatchedLauncher({"CLOSERANKS_VOTES": place}) for _ in range(3)]
        assert all(other.sleeps() for other in others), "its queue is full"
        server.accept()[0].close()
        assert not launcher.sleeps()


def test_looks_are_counted_one_after_the_other() -> None:
    watched = watchdog.WatchedRank(3)
    seen = "TTSTTTTT"
    assert [watched.is_over(state, "S", "") for state in seen] == [False] * 5 + [True, False, False]


def test_looks_before_it_has_run_once_more_do_not_count() -> None:
    watched = watchdog.WatchedRank(3)
    assert [watched.is_over("T", "S", turns) for turns in "1122333"] == [False] * 6 + [True]


def test_a_job_that_is_suspended_as_a_whole_is_left_alone() -> None:
    watched = watchdog.WatchedRank(2)
    assert not any(watched.is_over("T", "T", "") for _ in range(5))
    assert not any(watched.is_over("t", "S", "") for _ in range(5)), "a debugger holds it"


def test_processes_that_are_gone_are_no_trouble() -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    watchdog.watch([gone.pid], SILENCE_S)


def test_the_pipe_for_errors_is_held_a_moment_longer() -> None:
    words = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE) as first,
        subprocess.Popen(words, stderr=subprocess.PIPE) as last,
    ):
        watcher = Thread(target=watchdog.watch, args=([first.pid, last.pid], SILENCE_S))
        watcher.start()
        time.sleep(SILENCE_S)  # now it has them
        for process, least_s in ((first, 0.2), (last, 0.02)):
            process.kill()
            killed = time.monotonic()
            assert process.stderr is not None
            assert process.stderr.read() == b""
            assert least_s <= time.monotonic() - killed < 2
        watcher.join(5)
        assert not watcher.is_alive()
