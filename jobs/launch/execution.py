"""Running a launcher to its end, and passing on what asks the job to end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Final, NamedTuple

from closeranks.jobs.launch import linux_namespaces
from closeranks.jobs.launch.job_description import Command

#: What asks a job to end, and what its launcher is merely told.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED: Final = (signal.SIGUSR1, signal.SIGUSR2)
#: What says that the same request came twice, such as to a process and to its group: seconds.
_SAME_S: Final = 1.0
#: How long the launcher's end can go unseen where another thread took the news, in seconds.
_LOOK_S: Final = 1.0
#: Where the kernel itself sends a signal, which is to all that a terminal has in front.
_BY_KERNEL: Final = 128
#: A launcher that has ended a job on request gives 1 (Open MPI's), or 255 (Hydra).
_NO_PROGRAMS: Final = (1, 255)


class End(NamedTuple):
    """How a launcher has ended.

    Attributes
    ----------
    status : int
        Its exit status, 128 + n if signal n ended it; where we were asked to end
        the job, and it has not ended well, 128 + n of that signal.
    asked : bool
        Whether that is the case.
    """

    status: int
    asked: bool


def execute(
    command: Command,
    started: Callable[[subprocess.Popen[bytes]], object] = id,
    *,
    kind: str = "",
) -> End:
    """Run a command to its end; signals sent to us go to it as well.

    It is told to end where this process is killed.  Only the main thread may call.

    Parameters
    ----------
    command : Command
        What to run.
    started : callable, optional
        Is given its process.
    kind : str, optional
        What it is, see `closeranks.jobs.launch.launcher_choice.Launcher`.  Open
        MPI's launcher ends its ranks by SIGTERM on an interrupt, and lets go of
        them on a second one: it gets none but a SIGTERM of ours.  Hydra passes an
        interrupt on to the ranks; srun only tells how the job is when it gets one.
        Both have that of a terminal by themselves.

    Returns
    -------
    End
        How it ended.
    """
    with _Signals() as signals:
        masked = {signal.SIGINT} if kind == "openmpi" else set[signal.Signals]()
        child = subprocess.Popen(
            command.words,
            env={**os.environ, **command.environment},
            preexec_fn=partial(_begin, os.getpid(), signals.before, masked),
        )
        started(child)
        request = _Request(child, kind)
        for number, by_kernel in signals.until(lambda: child.poll() is not None):
            request.take(number, by_kernel=by_kernel)
    status = child.returncode if child.returncode >= 0 else 128 - child.returncode
    return request.end(status)


class _Request:
    """What a job was asked for, and what its launcher was told of it."""

    def __init__(self, child: subprocess.Popen[bytes], kind: str) -> None:
        self._child, self._kind = child, kind
        self._first, self._last_s = 0, float("-inf")

    def take(self, number: int, *, by_kernel: bool) -> None:
        """Pass a signal on, in the form that the launcher understands."""
        if number in _ENDING:
            self._first = self._first or number
            before_s, self._last_s = self._last_s, time.monotonic()
            if self._last_s - before_s < _SAME_S:
                return
        if number != signal.SIGINT:
            self._child.send_signal(number)
        elif self._kind == "openmpi":
            self._child.terminate()
        elif not by_kernel:
            self._child.send_signal(signal.SIGTERM if self._kind == "srun" else number)

    def end(self, status: int) -> End:
        """Say how the job has ended; Hydra gives the bare number of a signal."""
        if self._first and status in (*_NO_PROGRAMS, self._first, signal.SIGTERM, 143):
            status = 128 + self._first
        return End(status, asked=bool(self._first) and status != 0)


class _Signals:
    """Keeps signals for `until`; those that were ignored before stay ignored.

    Attributes
    ----------
    before : set of int
        Which were held up before.
    """

    def __init__(self) -> None:
        numbers = (*_ENDING, *_PASSED)
        self._heard = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
        self._waited = {*self._heard, signal.SIGCHLD}
        self._taken: list[int] = []
        self.before: set[int] = set()

    def __enter__(self) -> _Signals:
        self.before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._waited))
        # A thread of a library may be given one that this thread has held up.
        self._handlers = {number: signal.signal(number, self._take) for number in self._heard}
        return self

    def __exit__(self, *wrong: object) -> None:
        while signal.sigtimedwait(self._waited, 0) is not None:
            pass
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._taken.append(number)

    def until(self, over: Callable[[], bool]) -> Iterator[tuple[int, bool]]:
        """Give each signal, and whether the kernel has sent it, until all is over."""
        while not over():
            found = signal.sigtimedwait(self._waited, _LOOK_S)
            # Where a stop has outlasted the wait CPython gives what lies in memory there.
            if found is not None and found.si_signo in self._heard:
                yield found.si_signo, found.si_code == _BY_KERNEL
            while self._taken:
                yield self._taken.pop(0), False


def _begin(parent: int, before: Set[int], masked: Set[int]) -> None:
    """Let this child end in order when its parent has ended, or has already."""
    with suppress(OSError):  # it runs nevertheless
        linux_namespaces.die_with_parent(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, before | masked)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
