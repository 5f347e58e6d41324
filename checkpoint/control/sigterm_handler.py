"""The tasks of a process that gets SIGTERM, before it ends.

Python runs its own handlers between two instructions of the main thread, which
may be in an MPI call that never returns, for the others are gone.  So the C
part of the handler wakes a thread, which does the tasks.  Then the signal has
its effect: the handler that was there before is called, or the process ends.
The main thread is never held up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_Task = Callable[[], None]


class SigtermHandler:
    """The tasks of this process when it gets SIGTERM.

    Attributes
    ----------
    tasks : list of callable
        The tasks, one after the other.
    """

    def __init__(self) -> None:
        self.tasks: list[_Task] = []
        self._before: Any = None
        self._pipe: tuple[int, int] | None = None
        self._begun = self._done = False
        self._echoes = 0
        self._once = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def add(self, task: _Task) -> None:
        """Have something done when the process is told to end.

        Local; nothing on any thread but the main one, where signals cannot be had.

        Parameters
        ----------
        task : callable
            Raises nothing, and ends within a minute or so.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        is_of_python = signal.getsignal(signal.SIGTERM) is not None
        if not self.tasks and is_of_python and self._pipe is None:
            self._install()
        self.tasks.append(task)

    def remove(self, task: _Task) -> None:
        """Have it done no more.  Local, harmless twice."""
        if task in self.tasks:
            self.tasks.remove(task)
            main = threading.current_thread() is threading.main_thread()
            if not self.tasks and main and not self._begun:
                self._uninstall()

    def _install(self) -> None:
        """Take the signal."""
        self._before = signal.signal(signal.SIGTERM, self._handle)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(reading, True)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before >= 0:  # of somebody's event loop, which shall hear of signals
            signal.set_wakeup_fd(before)
        self._pipe = reading, writing
        threading.Thread(
            target=self._watch, args=(reading,), name="sigterm tasks", daemon=True
        ).start()

    def _uninstall(self) -> None:
        """Give the signal back, unless it has another handler by now."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._before)
        if self._pipe is not None:
            _, writing = self._pipe
            self._pipe = None
            self._release(writing)
            os.write(writing, b"\0")  # which ends the thread, and it closes the other end
            os.close(writing)

    def _release(self, writing: int) -> None:
        """Let the C part of handlers write to no pipe, or to a later owner's."""
        if self._is_woken(writing):
            signal.set_wakeup_fd(-1)

    def _is_woken(self, writing: int) -> bool:
        """Tell whether the C part of handlers writes to this end of a pipe."""
        found = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(found)
        return found == writing

    def _watch(self, reading: int) -> None:
        """Wait for signals, which the C part of handlers tells by their number."""
        while (number := os.read(reading, 1)[0]) != 0:
            if number == signal.SIGTERM:
                if self._echoes:
                    self._echoes -= 1
                else:
                    self._end()
        os.close(reading)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Call the handler that was there before, once all tasks are done."""
        if self._done or not self.tasks:
            self._begun = self._done = False
            if callable(self._before):
                self._before(number, frame)
            elif self._before == signal.SIG_DFL:
                _end_by_default()
            if not self.tasks:
                self._uninstall()
        elif self._pipe is None or not self._is_woken(self._pipe[1]):
            threading.Thread(target=self._end, name="sigterm tasks", daemon=True).start()

    def _end(self) -> None:
        """Do all that there is to do, then let the signal have its way."""
        with self._once:
            if self._begun:
                return
            self._begun = True
        try:
            for task in list(self.tasks):
                task()
        finally:
            self._done = True
            if self._before == signal.SIG_DFL:
                _end_by_default()
            self._echoes += 1
            os.kill(os.getpid(), signal.SIGTERM)

    def _forget(self) -> None:
        """Have nothing to do in a child that was forked."""
        pipe, self._pipe = self._pipe, None
        self.tasks = []
        if pipe is not None:
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, self._before)
            self._release(pipe[1])
            for end in pipe:
                os.close(end)


#: Of this process.
SIGTERM_HANDLER: Final = SigtermHandler()


def _end_by_default() -> None:
    """End this process as the signal does without a handler; on any thread."""
    reset = ctypes.pythonapi.PyOS_setsig
    reset.argtypes, reset.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    reset(int(signal.SIGTERM), None)
    os.kill(os.getpid(), signal.SIGTERM)
