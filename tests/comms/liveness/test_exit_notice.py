"""Exit notices: who ends is heard of before its memory is given back, and nobody else is."""

from __future__ import annotations

import mmap
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.comms.liveness import peer_watch


def can_wait() -> bool:
    """Tell whether the system can wait for several words: with others than said it does not."""
    word = np.zeros(1, np.uint32)
    try:
        peer_watch._wait([peer_watch._Waiter(1, word.ctypes.data, peer_watch._OF_32_BITS)])
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not can_wait(), reason="needs futex_waitv, Linux 5.16")

#: Maps the file, signs for both watchers, or lets a thread, and obeys.
SIGNER = """
import ctypes, mmap, sys, threading
import numpy as np
from closeranks.comms.liveness.peer_watch import LINE, ExitNotice
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: small pages are given back slowly
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
notice = ExitNotice(np.frombuffer(memory, np.uint8).reshape(-1, LINE))
ballast = np.ones(int(sys.argv[3]) << 17)
if sys.argv[2] == "thread":
    thread = threading.Thread(target=notice.sign)
    thread.start()
    thread.join()
else:
    notice.sign()
print("signed", flush=True)
for line in sys.stdin:
    print(notice.withdraw(), flush=True)
"""


def memory_of(path: Path) -> NDArray[np.uint8]:
    """Map a new file of two lines, for one process and its two watchers."""
    path.write_bytes(bytes(2 * peer_watch.LINE))
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8).reshape(2, peer_watch.LINE)


@contextmanager
def signer(path: Path, who: str = "first", mib: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has signed."""
    words = [sys.executable, "-c", SIGNER, str(path), who, str(mib)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "signed\n"
            yield process
        finally:
            process.kill()


def watchers(lines: list[NDArray[np.uint8]]) -> tuple[threading.Thread, list[list[int]]]:
    """Wait for exit notices in a thread; gives what it hears."""
    heard: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: heard.extend(peer_watch.ended_processes(lines)), daemon=True
    )
    thread.start()
    return thread, heard


def test_every_heir_hears_of_each_end_once(tmp_path: Path) -> None:
    one, two = memory_of(tmp_path / "one"), memory_of(tmp_path / "two")
    with signer(tmp_path / "one") as first, signer(tmp_path / "two") as second:
        all_watchers = [watchers([one[place], two[place]]) for place in range(2)]
        second.kill()
        for thread, heard in all_watchers:
            thread.join(0.5)
            assert thread.is_alive()
            assert heard == [[1]]
        first.kill()
        for thread, heard in all_watchers:
            thread.join(5)
            assert heard == [[1], [0]]


def test_those_who_end_at_once_are_heard_of_at_once(tmp_path: Path) -> None:
    lines = [memory_of(tmp_path / name)[0] for name in ("one", "two", "three")]
    with (
        signer(tmp_path / "one") as one,
        signer(tmp_path / "two"),
        signer(tmp_path / "three") as three,
    ):
        one.kill()
        three.kill()
        one.wait()
        three.wait()
        assert next(peer_watch.ended_processes(lines)) == [0, 2]


def test_it_opens_before_the_system_says_that_the_process_has_ended(tmp_path: Path) -> None:
    lines = memory_of(tmp_path / "one")
    with signer(tmp_path / "one", mib=512) as process:
        handle = wills_handle(process.pid)
        try:
            process.kill()
            assert next(peer_watch.ended_processes([lines[0]])) == [0]
            assert not select.select([handle], [], [], 0)[0], "the pages were given back first"
            assert select.select([handle], [], [], 10)[0]
        finally:
            os.close(handle)


def wills_handle(pid: int) -> int:
    """Give a handle of a process."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("this Python knows no pidfd")
    return os.pidfd_open(pid)


def test_who_has_withdrawn_is_not_waited_for(tmp_path: Path) -> None:
    lines = memory_of(tmp_path / "one")
    with signer(tmp_path / "one") as process:
        thread, heard = watchers([lines[1]])
        thread.join(0.2)
        assert thread.is_alive()
        print("withdraw", file=process.stdin, flush=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        thread.join(5)
        assert not thread.is_alive()
        assert heard == []


def test_a_thread_that_may_end_before_its_process_does_not_sign(tmp_path: Path) -> None:
    lines = memory_of(tmp_path / "one")
    with signer(tmp_path / "one", "thread"):
        assert list(peer_watch.ended_processes([lines[0]])) == []


def test_a_child_that_is_forked_leaves_the_will_alone(tmp_path: Path) -> None:
    lines = memory_of(tmp_path / "one")
    exit_notice = peer_watch.ExitNotice(lines)
    exit_notice.sign()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    thread, heard = watchers([lines[0]])
    thread.join(0.2)
    assert thread.is_alive()
    assert exit_notice.withdraw()
    thread.join(5)
    assert heard == []


def test_a_signal_between_two_lines_leaves_nothing_locked(tmp_path: Path) -> None:
    exit_notice = peer_watch.ExitNotice(memory_of(tmp_path / "one"))
    exit_notice.sign()
    first, second = exit_notice._signed
    assert exit_notice.withdraw()
    exit_notice._signed = [first, second]  # unlocked, and not noted
    assert exit_notice.withdraw()
    exit_notice.sign()
    assert exit_notice.withdraw()


def test_an_old_system_says_that_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = memory_of(tmp_path / "one")
    monkeypatch.setattr(peer_watch, "_FUTEX_WAITV", 100_000)
    with signer(tmp_path / "one"), pytest.raises(OSError, match="not implemented"):
        next(peer_watch.ended_processes([lines[0]]))
